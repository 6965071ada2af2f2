"""The shipped recipes of the benchmarks, on files packed and laid out as theirs are: each kind of corpus is read."""

import gzip
import lzma
import random
import re
from dataclasses import replace
from pathlib import Path

import pycountry
import pytest

from fairseq_mtmoe.data.corpora.blocks import Block
from fairseq_mtmoe.data.corpora.cleaning.languages import scripts_of
from fairseq_mtmoe.data.corpora.engine.pipeline import prepare
from fairseq_mtmoe.data.corpora.engine.workers import Workers
from fairseq_mtmoe.data.corpora.readers import read
from fairseq_mtmoe.data.corpora.recipes.recipe import load_recipe
from fairseq_mtmoe.data.corpora.recipes.schema import HeldOut, Role
from tests.unit.data.corpora.readers.test_packed_files import tar_of, zip_of

LINES = 9
LETTERS = {
    "Latn": "abcdefghijklmnopqrstuvwxyz", "Cyrl": "абвгдежзийклмнопрст", "Arab": "ابتثجحخدذرزسشصض", "Hebr": "אבגדהוזחט",
    "Deva": "अआइउएकखगघचजटडतथदन", "Beng": "অআইউএকখগঘচজটড", "Gujr": "અઆઇઉએકખગઘચજટડ", "Taml": "அஆஇஉஎகஙசஞடணதந",
    "Telu": "అఆఇఉఎకఖగఘచజటడ", "Mlym": "അആഇഉഎകഖഗഘചജടഡ", "Sinh": "අආඉඋඑකඛගඝචජටඩ", "Thai": "กขคงจชซญดตถทธ",
    "Khmr": "កខគឃងចឆជឈញដឋឌ", "Mymr": "ကခဂဃငစဆဇဈညတထဒ", "Geor": "აბგდევზთიკლმნ", "Hang": "가나다라마바사아자차카",
    "Hani": "一丁七万丈三上下不与丐丑专", "Hira": "あいうえおかきくけこ",
}  # fmt: skip
WIDE = {"Hani", "Hira", "Hang"}


def sentence(lang, file, number):
    """A sentence of made-up words in the language's script, which is in no other file and line."""
    draw = random.Random(f"{lang} {file} {number}")
    script = next(script for script in scripts_of(lang) if script in LETTERS)
    words = ["".join(draw.choices(LETTERS[script], k=2 if script in WIDE else 6)) for _ in range(6)]
    return ("" if script in WIDE else " ").join(words)


def wanted_of(recipe):
    """By file, which may be a member of an archive: its languages by the column or name that a corpus takes them from,
    and the format that the corpus says."""
    wanted = {}
    for corpus in recipe.corpora:
        sides = [corpus.fields.get(side) for side in ("source", "target")]
        for side, (lang, field) in enumerate(zip(corpus.languages, sides, strict=True)):
            file = corpus.files[side % len(corpus.files)]
            langs, _ = wanted.setdefault(file, ({}, corpus.format))
            langs[lang if field is None else field] = lang
    return wanted


def content(file, langs, form):
    """A file of its kind, which its name says as those of the benchmarks do."""
    texts = [{field: sentence(lang, file, number) for field, lang in langs.items()} for number in range(LINES)]
    name = file.removesuffix(".gz").removesuffix(".xz")
    if name.endswith((".tmx", ".tmx.zip")):
        unit = "".join(f"<tuv xml:lang='{lang}'><seg>{{{lang}}}</seg></tuv>" for lang in langs)
        units = "".join(f"<tu>{unit.format(**one)}</tu>" for one in texts)
        return f'<?xml version="1.0"?><tmx version="1.4"><header srclang="en"/><body>{units}</body></tmx>'
    if name.endswith(".po"):
        source, target = sorted(langs, key=lambda lang: lang != "en")
        entries = "".join(f'\nmsgid "{one[source]}"\nmsgstr "{one[target]}"\n' for one in texts)
        return f'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n{entries}'
    if any(isinstance(field, str) and field != lang for field, lang in langs.items()) or len(langs) > 1:
        return table(texts, langs)
    (lang,) = langs
    lines = [one[lang] for one in texts]
    if name.endswith((".sgm", ".xml")):
        kind = "srcset" if lang == "en" else "refset"
        segments = "".join(f'<seg id="{number}"> {line} </seg>\n' for number, line in enumerate(lines, 1))
        return f'<{kind} setid="x" srclang="any">\n<doc docid="1">\n{segments}</doc>\n</{kind}>\n'
    if form == "iwslt":
        return "".join([f"<url>http://x/{file[-2:]}</url>\n<talkid>1</talkid>\n", *(f"{line}\n" for line in lines)])
    return "".join(f"{line}\n" for line in lines)


def table(texts, langs):
    """Columns of text where it is asked for, of numbers elsewhere; under names where it is asked for by name."""
    if all(isinstance(field, str) for field in langs):
        rows = [[one.get(name, name) for name in ("talk_name", *sorted(langs))] for one in ({}, *texts)]
    else:
        columns = range(1, max(langs) + 1)
        rows = [[one.get(column, f"0.{number}") for column in columns] for number, one in enumerate(texts)]
    return "".join("\t".join(row) + "\n" for row in rows)


def write_raw(raw, wanted):
    """All files; those of one archive together."""
    files, archives = {}, {}
    for file, (langs, form) in wanted.items():
        outer, _, member = file.partition("!")
        data = content(file, langs, form).encode()
        data = gzip.compress(data) if file.endswith(".gz") else lzma.compress(data) if file.endswith(".xz") else data
        if member:
            archives.setdefault(outer, {})[member.replace("*", "h")] = data
        else:
            files[outer] = data
    for file, members in archives.items():
        mode = "w" if file.endswith(".tar") else "w:gz"
        files[file] = zip_of(members.items()) if file.endswith(".zip") else tar_of(members.items(), mode)
    for file, data in files.items():
        (raw / file).parent.mkdir(parents=True, exist_ok=True)
        (raw / file).write_bytes(data)


def kind(corpus):
    """What sets corpora apart: their format, fields, and how their files are packed."""
    suffixes = re.findall(r"\.(gz|xz|tgz|tar|zip|tmx|po|sgm|xml|tsv)\b", " ".join(corpus.files))
    return corpus.format, *corpus.fields, len(corpus.files), *suffixes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wmt15", "ml50"])
def test_a_corpus_of_every_kind_is_read(name, tmp_path):
    recipe = load_recipe(name)
    corpora = {kind(corpus): replace(corpus, sha256=[], md5=[], bytes=[]) for corpus in recipe.corpora}
    train = [corpus for corpus in corpora.values() if corpus.role is Role.train]
    small = replace(recipe, held_out=HeldOut(2, 2), vocabulary=replace(recipe.vocabulary, size=None))
    small = replace(small, corpora=[one for one in corpora.values() if one.pair in {corpus.pair for corpus in train}])
    write_raw(tmp_path / "raw", wanted_of(small))
    report = prepare(tmp_path / "raw", tmp_path / "data", small, Workers())
    assert len(train) > 3 and len(report["corpora"]) == len(small.corpora)
    assert {found: one for found, one in report["corpora"].items() if one["read"] != LINES or one["bad"]} == {}
    assert all(pair[split] for pair in report["pairs"].values() for split in ("train", "valid", "test"))


def test_the_demo_s_text_is_in_the_installed_packages():
    recipe = load_recipe("catalogs")
    assert len(recipe.corpora) > 200 and recipe.missing(Path(pycountry.__file__).parents[1]) == []


def test_a_corpus_of_the_demo_is_read():
    recipe, packages = load_recipe("catalogs"), Path(pycountry.__file__).parents[1]
    corpus = next(one for one in recipe.corpora if one.name == "sphinx-zh_Hans")
    blocks = [item for item in read(recipe.files_of(corpus, packages)) if isinstance(item, Block)]
    pairs = dict(zip(blocks[0].source, blocks[0].target, strict=True))
    assert pairs["Index"] == "索引"
