"""The rule that asks a model for language identification."""

import sys

import numpy as np
import pytest

from fairseq_mtmoe.corpora.blocks import Block
from fairseq_mtmoe.corpora.cleaning import languages as identification
from fairseq_mtmoe.corpora.cleaning.cleaner import clean
from fairseq_mtmoe.corpora.recipes.codes import plain_code
from fairseq_mtmoe.corpora.recipes.schema import Filters
from fairseq_mtmoe.translation.data.languages import MBART50, languages
from tests.helpers.fasttext_files import write_model
from tests.helpers.refused import refused

SENTENCES = {"en": "the house is old", "de": "das haus ist alt", "fr": "la maison est vieille"}
WORDS = {lang: sentence.split() for lang, sentence in SENTENCES.items()}
PAIRS = [
    ("the house is old", "das haus ist alt"),
    ("the house", "la maison"),  # not German
    ("das haus", "ist alt"),  # not English
    ("the old", "haus maison"),  # as much German as French
    ("Mxyzptlk", "Vbnmkjhg"),  # of words that the model does not know
]


def kept(model, lang: str, confidence: float = 0.9) -> tuple[list[int], dict[str, int]]:
    filters = Filters(identify=str(model), min_confidence=confidence)
    out = clean(Block(*zip(*PAIRS, strict=True), np.arange(len(PAIRS))), ("en", lang), filters)
    return out.lines.tolist(), out.counts


def test_pairs_with_a_side_in_another_language_are_left_out_by_confidence(tmp_path):
    words = dict(zip(("eng_Latn", "deu_Latn", "fra_Latn"), WORDS.values(), strict=True))
    lines, counts = kept(write_model(tmp_path / "lid.bin", words), "de_DE")
    assert (lines, counts["language"]) == ([0, 3, 4], 2)
    model = write_model(tmp_path / "lid.bin", {lang: words[:3] for lang, words in WORDS.items()})
    assert kept(model, "fr", 0.49)[0] == [1, 3, 4]  # "haus maison": both have half
    assert kept(model, "fr", 0.9999)[0] == [0, 1, 2, 3, 4]
    model = write_model(tmp_path / "two.bin", {lang: WORDS[lang] for lang in ("en", "fr")})
    assert kept(model, "de")[0] == [0, 1, 2, 3, 4]  # for what the model does not know it is not asked


def test_what_is_no_model(tmp_path, monkeypatch):
    """It is tried in another process, with limits of time and memory."""
    model = write_model(tmp_path / "lid.bin", WORDS)
    whole = model.read_bytes()
    identification.check_model(str(model))
    monkeypatch.setattr(identification, "_SECONDS", 2)
    for content in (b"no model\n" * 100, whole[:100], whole[:-20], whole[:-1]):
        (tmp_path / "cut.bin").write_bytes(content)
        with refused("identify", "cut.bin"):
            identification.check_model(str(tmp_path / "cut.bin"))
    monkeypatch.setattr(identification, "_MEMORY", 0)
    with refused("identify", "lid.bin"):
        identification.check_model(str(model))
    monkeypatch.setitem(sys.modules, "fasttext", None)
    with refused("identify"):
        identification.load_model(str(model))


def test_the_table_has_mbarts_languages_and_agrees_with_iso_and_unicode():
    written = {code: language for code, language in languages().items() if "scripts" in language}
    assert {plain_code(code) for code in MBART50} <= set(written)
    pycountry, babel = pytest.importorskip("pycountry"), pytest.importorskip("babel.core")
    likely = babel.get_global("likely_subtags")
    joined = {"Jpan": "Hani", "Kore": "Hang", "Hans": "Hani"}
    for code, language in written.items():
        assert pycountry.languages.get(alpha_2=code).alpha_3 in language["names"]
        usual = likely[code].split("_")[1]
        assert joined.get(usual, usual) == language["scripts"][0], code
