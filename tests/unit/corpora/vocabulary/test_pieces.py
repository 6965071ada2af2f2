"""A model and a dictionary, given or ours, and what they have of each language."""

from collections import Counter

import numpy as np
import pytest
import sentencepiece
from fairseq.data import Dictionary
from fontTools.unicodedata import script
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_mtmoe.corpora.vocabulary.pieces import OF_GIVEN, OF_RECIPE, load, table
from fairseq_mtmoe.corpora.vocabulary.training import required_characters, train_model
from tests.helpers.piece_models import trained_pieces
from tests.helpers.refused import refused

TEXT = [f"{a}{b} {c}{a} {b}" for a in ("mor", "gel", "tir") for b in ("dan", "sup") for c in ("ak", "ne", "ol")] * 20
SIZE = 26


@pytest.fixture(scope="module")
def mbarts() -> bytes:
    """A model with SentencePiece's own ids of special pieces, as mBART's has them."""
    return trained_pieces(TEXT, "unigram", SIZE)


def test_a_given_dictionary_decides_by_the_text_of_the_pieces(mbarts, tmp_path):
    processor = sentencepiece.SentencePieceProcessor(model_proto=mbarts)
    names = [processor.id_to_piece(piece) for piece in range(SIZE)]
    path = tmp_path / "dict.txt"
    symbols = [*reversed(names[4:]), "[de_DE]"]  # without the first one
    path.write_text("".join(f"{symbol} 1\n" for symbol in symbols), encoding="utf-8")
    pieces = load(mbarts, path)
    dictionary = Dictionary.load(str(path))
    assert pieces.symbols == dictionary.symbols[4:]
    assert pieces.ids[3:].tolist() == [dictionary.index(name) for name in names[3:]]
    assert pieces.ids[:4].tolist() == [dictionary.unk(), dictionary.bos(), dictionary.eos(), dictionary.unk()]


@pytest.mark.parametrize("text", ["▁a 3\nb\n", "▁a 3\nb x\n", "▁a 3\nb 1\n▁a 1\n", "<s> 1\n▁a 3\n", "▁xyz 3\nq 1\n"])
def test_dictionaries_that_do_not_fit_and_what_is_no_model(mbarts, tmp_path, text):
    (tmp_path / "dict.txt").write_text(text, encoding="utf-8")
    with refused("dict.txt", first=False):
        load(mbarts, tmp_path / "dict.txt")
    for model in (b"", b"no model"):
        with refused("vocabulary.model"):
            load(model)


LINES = st.lists(st.text("abc def, é1 жди ქართ漢字", max_size=15), max_size=6)


def script_of(character: str) -> str:
    found = script(character)
    return "other" if found in ("Zyyy", "Zinh", "Zzzz") else found


@settings(max_examples=30, deadline=None)
@given(LINES, st.sampled_from([0.5, 0.9, 1.0]))
def test_every_script_has_its_most_frequent_characters(lines, coverage):
    counts = Counter(one for line in lines for one in line if script_of(one) != "other")
    required = required_characters(lines, coverage)
    for name in {script_of(one) for one in counts}:
        own = {one: times for one, times in counts.items() if script_of(one) == name}
        kept = sorted(own, key=lambda one: (-own[one], one))
        sums = np.cumsum([own[one] for one in kept])
        needed = np.argmax(sums >= coverage * sums[-1]) + 1
        assert {one for one in required if script_of(one) == name} == set(kept[:needed])
    assert {script_of(one) for one in required} == {script_of(one) for one in counts}


def test_a_rare_script_keeps_its_characters_in_a_trained_model():
    """Over all characters together a coverage of 0.99 would have none of the Georgian ones."""
    text = ["many words of a language in these letters", "more of such words, and letters"] * 300
    text += ["ქართული ენა"] * 10
    for size, required, is_covered in ((36, required_characters(text, 0.99), True), (28, "", False)):
        model = sentencepiece.SentencePieceProcessor(model_proto=train_model(text, size, 0.99, required))
        assert (model.unk_id() not in model.encode("ქართული ენა")) == is_covered


def counts(**changed) -> dict[str, int]:
    return {"words": 100, "tokens": 150, "unknown": 0, "characters": 600, **changed}


def test_a_row_for_each_language_warns_of_too_many_pieces_and_unknown_tokens():
    rows = table({"de": counts(unknown=3), "zh_CN": counts(), "fr": counts(words=0, tokens=0, characters=0)}, OF_RECIPE)
    assert rows["de"] == {
        **{"pieces_per_word": 1.5, "characters_per_piece": 4.0, "unknown_share": 0.02},
        "warning": f"2.00% of the tokens are unknown, above 0.5%; {OF_RECIPE}",
    }
    assert rows["zh_CN"]["pieces_per_word"] is rows["fr"]["characters_per_piece"] is rows["fr"]["warning"] is None
    for lang, characters, warns in (
        ("de", 299, True), ("de", 301, False), ("my_MM", 299, True), ("ja_XX", 179, True), ("ko", 181, False)
    ):  # fmt: skip
        warning = table({lang: counts(characters=characters)}, OF_GIVEN)[lang]["warning"] or ""
        assert warning.endswith(OF_GIVEN) == ("pieces have" in warning) == warns
