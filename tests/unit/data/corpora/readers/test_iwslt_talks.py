"""IWSLT's training files, as those of 2014 and 2017 are."""

import pytest

from tests.helpers.reading import corpus, found_in

SOURCE = """<doc docid="1" genre="lectures">
<url>http://www.ted.com/talks/somebody_on_something.html</url>
<keywords>talks, bees</keywords>
<speaker>Some Body</speaker>
<talkid>1</talkid>
<title>On bees</title>
<description>TED Talk Subtitles and Transcript: Some Body likes bees.</description>
Bees are small .
 If a < b , <i>b</i> is larger .
<reviewer></reviewer>
</doc>
<url>http://www.ted.com/talks/another</url>
<title> On ants </title>
Ants , too .
"""
TARGET = """<doc docid="1" genre="lectures">
<url>http://www.ted.com/talks/somebody_on_something.html</url>
<keywords>talks, bees</keywords>
<speaker>Some Body</speaker>
<talkid>1</talkid>
<title>Über Bienen</title>
<description>Vortrag: Some Body mag Bienen.</description>
Bienen sind klein .
 Ist a < b , so ist <i>b</i> größer .
<reviewer href="http://www.ted.com/profiles/1">Eine Andere</reviewer>
<translator href="http://www.ted.com/profiles/2">Ein Anderer</translator>
</doc>
<url>http://www.ted.com/talks/another</url>
<title>Über Ameisen</title>
Ameisen auch .
"""
PAIRS = [
    (1, "On bees", "Über Bienen"),
    (2, "TED Talk Subtitles and Transcript: Some Body likes bees.", "Vortrag: Some Body mag Bienen."),
    (3, "Bees are small .", "Bienen sind klein ."),
    (4, " If a < b , <i>b</i> is larger .", " Ist a < b , so ist <i>b</i> größer ."),
    (5, " On ants ", "Über Ameisen"),
    (6, "Ants , too .", "Ameisen auch ."),
]


def talks(folder, source=SOURCE, target=TARGET, **options):
    for lang, content in (("en", source), ("de", target)):
        (folder / f"train.tags.en-de.{lang}").write_bytes(content if isinstance(content, bytes) else content.encode())
    return corpus(folder / "train.tags.en-de.en", folder / "train.tags.en-de.de", **options)


@pytest.mark.parametrize("form", ["iwslt", "auto"])
@pytest.mark.parametrize("begins", ["<doc", "<url>"])
def test_what_is_said_about_a_talk_is_no_text_and_titles_are(tmp_path, form, begins):
    texts = [text[text.index(begins) :] for text in (SOURCE, TARGET)]
    assert found_in(talks(tmp_path, *texts, format=form)) == (PAIRS, [])


def test_lines_that_cannot_be_used_misalign_nothing(tmp_path):
    """Neither among those about a talk, which count on neither side, nor in text."""
    source = SOURCE.encode().replace(b"talks, bees", b"talks, \xff").replace(b"Bees are", b"Bees \0")
    pairs, bad = found_in(talks(tmp_path, source))
    assert pairs == [pair for pair in PAIRS if pair[0] != 3]
    assert [(line.line, line.reason) for line in bad] == [(3, "nul")]


def test_sentences_that_one_file_has_more_are_counted(tmp_path):
    pairs, bad = found_in(talks(tmp_path, target=TARGET + "<url>x</url>\nmehr\nnoch mehr\n"))
    assert pairs == PAIRS and [(line.line, line.reason, line.lost) for line in bad] == [(7, "unequal", 2)]
