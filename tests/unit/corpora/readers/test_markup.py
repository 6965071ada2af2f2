"""Translation memories and sets in XML, and sets in SGM."""

import codecs

import pytest

from fairseq_mtmoe.corpora.readers import read
from tests.helpers.reading import found_in, told, written
from tests.helpers.refused import refused

TMX = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<!-- a comment with <tmx> -->
<tmx version="1.4">
  <header creationtool="x" segtype="sentence" adminlang="en-US" srclang="en-US" o-tmf="x" datatype="plaintext"/>
  <body>
    <tu tuid="1"><note>no text</note>
      <tuv xml:lang="EN-US"><seg>Fish &amp; <hi type="b">chips</hi> &#x2014; &lt;b&gt;</seg></tuv>
      <tuv xml:lang="de-DE"><seg>Fisch <bpt i="1">&lt;b&gt;<sub>no</sub></bpt>und<ept i="1">b</ept> mehr</seg></tuv>
      <tuv xml:lang="fr"><seg>Poisson</seg></tuv>
    </tu>
    <tu><tuv xml:lang="en"><seg>alone</seg></tuv><tuv xml:lang="fr"><seg>seul</seg></tuv></tu>
    <tu><tuv lang="de"><seg>alt</seg></tuv><tuv lang="de-AT"><seg>neu</seg></tuv>
      <tuv lang="en"><seg>old</seg></tuv></tu>
    <tu><tuv xml:lang="en"><seg></seg></tuv><tuv xml:lang="de"><seg>leer</seg></tuv></tu>
  </body>
</tmx>
"""


def test_tmx(tmp_path):
    pairs, bad = told(written(tmp_path, TMX))
    assert pairs == [(1, "Fish & chips — <b>", "Fisch und mehr"), (3, "old", "alt")]
    assert bad == [("a", 2, "untranslated"), ("a", 4, "empty")]
    assert found_in(written(tmp_path, TMX, target="de_AT"))[0][1] == (3, "old", "neu")  # in the very variety


@pytest.mark.parametrize(("lang", "text"), [("zh_Hant", "繁體軟體"), ("zh_HK", "繁體軟體"), ("zh", "简体软件")])
def test_of_a_languages_varieties_the_one_in_its_script_is_taken(tmp_path, lang, text):
    texts = {"en": "The software", "zh-CN": "简体软件", "zh-TW": "繁體軟體"}
    unit = "".join(f'<tuv xml:lang="{code}"><seg>{said}</seg></tuv>' for code, said in texts.items())
    files = written(tmp_path, f"<tmx><body><tu>{unit}</tu></body></tmx>", target=lang)
    assert told(files) == ([(1, "The software", text)], [])


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "iso-8859-1"])
def test_xml_in_the_encoding_that_it_says(tmp_path, encoding):
    said = "UTF-8" if encoding == "utf-8-sig" else encoding.upper()
    text = TMX.replace("UTF-8", said).replace("mehr", "Grüße").replace("—", "-")
    pairs, _ = found_in(written(tmp_path, text.encode(encoding)))
    assert pairs[0][2] == "Fisch und Grüße" and len(pairs) == 2


WMT = """<?xml version='1.0' encoding='utf-8'?>
<dataset id="newstest2021"><collection id="general">
 <doc id="d1" origlang="en" domain="news">
  <src lang="en"><p><seg id="1">One.</seg><seg id="2">Two.</seg></p><p><seg id="3">Three.</seg></p></src>
  <ref lang="de" translator="A"><p><seg id="1">Eins.</seg></p><p><seg id="3">Drei.</seg></p></ref>
  <ref lang="de" translator="B"><p><seg id="1">Eins!</seg><seg id="2">Zwei!</seg><seg id="9">Neun!</seg></p></ref>
  <hyp lang="de" system="X"><p><seg id="1">no</seg></p></hyp>
 </doc>
 <doc id="d2" origlang="en"><src lang="en"><seg id="1">Again.</seg></src>
  <ref lang="de" translator="A"><seg id="1">Wieder.</seg></ref></doc>
 <doc id="d3"><src lang="en"><seg id="1">None.</seg></src></doc>
</collection></dataset>"""


def test_wmt_with_several_references(tmp_path):
    files = written(tmp_path, WMT)
    pairs, bad = told(files)
    assert pairs == [(1, "One.", "Eins."), (2, "Two.", "Zwei!"), (3, "Three.", "Drei."), (5, "Again.", "Wieder.")]
    assert bad == [("a", 4, "unpaired"), ("a", 6, "untranslated")]
    (block,) = (item for item in read(files) if hasattr(item, "references"))
    assert block.references == (["Eins!", "", "", ""],)


ENTITIES = """<!DOCTYPE tmx [<!ENTITY a "aaaaaaaaaa">%s]>
<tmx version="1.4"><body><tu><tuv xml:lang="en"><seg>&%s;</seg></tuv><tuv xml:lang="de"><seg>x</seg>
</tuv></tu></body></tmx>"""


SOURCE = """<srcset setid="newstest2014-deen-src" srclang="any">
<doc sysid="src" docid="bbc.1" genre="news" origlang="en">
<hl>
<seg id="1">AT&T &amp; R&D: 3 < 4</seg>
</hl>
<p>
<seg id="2"> Two
lines </seg>
</p>
</doc>
<DOC docid=cnn SYSID='src'>
<seg id=1>Three &lt;b&gt; &copy; &#8212; <i>kept</i></SEG>
</DOC>
</srcset>
"""
REFERENCE = """<refset setid="newstest2014-deen-ref" srclang="any" trglang="de">
<doc sysid="ref" docid="cnn"><seg id="1">Drei</seg></doc>
<doc sysid="ref" docid="bbc.1"><seg id="1">Eins</seg><seg id="2">Zwei</seg></doc>
</refset>
"""
PAIRS = [(1, "AT&T & R&D: 3 < 4", "Eins"), (2, "Two\nlines", "Zwei"), (3, "Three <b> &copy; — <i>kept</i>", "Drei")]


DOCTYPE = '\ufeff<!DOCTYPE srcset SYSTEM "ftp://a.invalid/mteval.dtd">\n'


def test_segments_are_paired_by_document_and_number(tmp_path):
    for start in ("", DOCTYPE):
        assert found_in(written(tmp_path, start + SOURCE, REFERENCE)) == (PAIRS, [])
    reference = REFERENCE.replace('<seg id="1">Eins', '<seg id="7">Eins')
    bad = [("a", 1, "unpaired"), ("a", 4, "unpaired")]
    assert told(written(tmp_path, SOURCE, reference)) == (PAIRS[1:], bad)
    for wrong, reason in ((b"\xff", "encoding"), (b"", "empty"), (b"x" * 400_000, "long")):
        source = SOURCE.encode().replace(b" Two\nlines ", wrong)
        assert told(written(tmp_path, source, REFERENCE)) == (PAIRS[::2], [("a", 2, reason)])


ENTITIES = """<!DOCTYPE tmx [<!ENTITY a "aaaaaaaaaa">%s]>
<tmx version="1.4"><body><tu><tuv xml:lang="en"><seg>&%s;</seg></tuv><tuv xml:lang="de"><seg>x</seg>
</tuv></tu></body></tmx>"""


@pytest.mark.parametrize(("name", "contents", "settings"), [
    ("a", [ENTITIES % ("".join(f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">' for n in range(9)), "j")], {}),
    ("a", [ENTITIES % ('<!ENTITY x SYSTEM "file:///etc/passwd">', "x")], {}),
    ("a", [TMX.replace("Fish", "&nbsp;")], {}),  # with a DTD that is not fetched
    ("a", [TMX.replace("</", "<a>" * 600 + "</", 1)], {}),
    ("a", [TMX.replace("UTF-8", "no-such")], {}),
    ("files of corpus", [TMX, TMX], {"format": "tmx"}),
    ("format of corpus", [TMX], {"format": "docx"}),
    ("a", [codecs.BOM_UTF8 + b"<p>a line</p>\n"], {}),
    ("a", [WMT], {"target": "fr"}),  # which has no references
    ("a", [SOURCE[:-25], REFERENCE], {"format": "sgm"}),
    ("b", [SOURCE, "<refset></refset>"], {"format": "sgm"}),
])  # fmt: skip
def test_files_that_are_cut_wrong_or_of_no_known_format_are_refused(tmp_path, name, contents, settings):
    with refused(name):
        found_in(written(tmp_path, *contents, **settings))
