"""The rules of cleaning, each compared with what it says pair by pair in plain Python."""

import time
import unicodedata
from itertools import combinations

import numpy as np
import pytest
from fontTools.unicodedata import script
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairseq_mtmoe.core.normalisation import normalise
from fairseq_mtmoe.corpora.blocks import Block
from fairseq_mtmoe.corpora.cleaning import cleaner, keys
from fairseq_mtmoe.corpora.cleaning.characters import CODES, Columns, normalised
from fairseq_mtmoe.corpora.cleaning.keys import are_among, fold, folded, folding, sentence_keys
from fairseq_mtmoe.corpora.recipes.schema import Filters

# Letters, marks, digits, spaces and what is invisible, of scripts that Unicode treats each in its own way.
ALPHABETS = [
    *("abcAÉßﬁİŉſ½²①Ⅷ…–'\" 0129", "абвЙйЁё ", "अआकिीु़्ँ०१ ", "กขิุ่้๑ ", "ابتةَُِّ٣۵ ", "אבגּׁ "),
    *("가각힣각ㄱ ", "かがカﾞガ漢字ー１Ａ 。", "漢字㎏㍿﷽", "ភាសាខ្មែរ ", "မြန်မာ ", "ΑαΣσςΐ "),
    "a \t\n\r\x0b\x1c\x85\xa0\u2028\u3000\u200b\u200d\xad\ufeff\x00\x7f",
    *("e\u0301\u0323\u0345\u0f71\u0f74", "😀\ufe0f\U000e0101★"),
]
CHARACTERS = st.characters(exclude_categories=["Cn", "Cs"])  # Python 3.11 takes unassigned ones for wide
TEXTS = st.one_of(st.text(CHARACTERS, max_size=40), *(st.text(alphabet, max_size=30) for alphabet in ALPHABETS))
FILTERS = Filters(max_characters=24, max_ratio=2.0)
KEYS = ["1f10c65f95eba086", "68137d8480d7a1df", "2d06800538d394c2", "8d55e44c8dcca505", "ade2bf7ceb156d64"]


def near_pairs(text: str) -> st.SearchStrategy[tuple[str, str]]:
    """A text with another one that some rule may find."""
    others = (text, text.upper(), text + "!", text * 3, text[: len(text) // 3], text.replace("a", "я"), f"{text} 漢字")
    return st.tuples(st.just(text), st.sampled_from(others) | TEXTS)


PAIRS = st.lists(TEXTS.flatmap(near_pairs), max_size=12)


def reference_fold(text: str) -> str:
    return "".join(map(fold, text))


def reference_width(text: str) -> int:
    return sum(3 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def reference_is_foreign(text: str, own: tuple[str, ...]) -> bool:
    """The share of the letters and marks of other scripts, those that belong to several left out."""
    letters = [
        (reference_width(character), script(character) in own)
        for character in text
        if unicodedata.category(character)[0] in "LM" and script(character) not in ("Zyyy", "Zinh", "Zzzz")
    ]
    return sum(width for width, is_own in letters if not is_own) > 0.7 * sum(width for width, _ in letters)


def reference_rule(source: str, target: str) -> str | None:
    """The rule that leaves out a pair of normalised sentences, English and Russian."""
    folded_source, folded_target = reference_fold(source), reference_fold(target)
    widths = [reference_width(source) + 10, reference_width(target) + 10]
    if max(len(source), len(target)) > FILTERS.max_characters:
        return "length"
    if not folded_source or not folded_target:
        return "empty"
    if max(widths) / min(widths) > FILTERS.max_ratio:
        return "ratio"
    if folded_source == folded_target:
        return "copy"
    if reference_is_foreign(source, ("Latn",)) or reference_is_foreign(target, ("Cyrl",)):
        return "wrong_script"
    return None


def cleaned(pairs: list[tuple[str, str]], filters: Filters | None = None, target: str = "ru") -> cleaner.Cleaned:
    """Return the pairs cleaned in slices of five."""
    sides = [[pair[side] for pair in pairs] for side in (0, 1)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleaner, "_AT_ONCE", 5)
        return cleaner.clean(Block(*sides, np.arange(1, len(pairs) + 1) * 7), ("en", target), filters)


@settings(max_examples=60, deadline=None)
@given(st.lists(TEXTS, max_size=8))
@example(["", " ", "  a", "a  ", "\xa0", "a\u2003b", "", "e" + "\u0301\u0323" * 600])
def test_many_texts_are_normalised_as_one_is(texts):
    assert normalised(texts) == list(map(normalise, texts))


@settings(max_examples=60, deadline=None)
@given(PAIRS, st.lists(TEXTS, max_size=3), st.data())
def test_every_rule_finds_what_it_says(pairs, held_out, data):
    if pairs:
        held_out.append(data.draw(st.sampled_from(pairs))[0].upper())  # and one that is there, in another spelling
    out = cleaned(pairs, FILTERS)
    texts = [(normalise(source), normalise(target)) for source, target in pairs]
    found = [reference_rule(*pair) for pair in texts]
    stays = [index for index, rule in enumerate(found) if rule is None]
    assert list(zip(out.source, out.target, strict=True)) == [texts[index] for index in stays]
    assert out.lines.tolist() == [7 * (index + 1) for index in stays]
    for rule in ("length", "empty", "ratio", "copy", "wrong_script"):
        assert out.counts[rule] == found.count(rule)
        lines = {7 * (index + 1) for index, one in enumerate(found) if one == rule}
        samples = out.samples.get(rule, [])
        assert {line for line, _, _ in samples} <= lines and len(samples) == min(len(lines), 5)
    folded_out = {reference_fold(normalise(text)) for text in held_out}
    keys_out = np.unique(sentence_keys(normalised(held_out)))
    for side_keys, kept in ((out.source_keys, out.source), (out.target_keys, out.target)):
        assert are_among(side_keys, keys_out).tolist() == [reference_fold(text) in folded_out for text in kept]


@settings(max_examples=40, deadline=None)
@given(PAIRS)
def test_keys_of_pairs_are_equal_where_they_say(pairs):
    out = cleaned(pairs)

    def digitless(text):
        return "".join("0" if unicodedata.category(one) == "Nd" else one for one in reference_fold(text))

    kept = list(zip(out.source, out.target, strict=True))
    assert kept == [(normalise(source), normalise(target)) for source, target in pairs]  # nothing is lost
    near = [tuple(map(digitless, pair)) for pair in kept]
    for pair_keys, values in ((out.exact, kept), (out.near, near)):
        same = [one == other for one, other in combinations(values, 2)]
        assert [one == other for one, other in combinations(pair_keys, 2)] == same


@pytest.mark.parametrize("at_once", [1, 1000, 1 << 22])
def test_the_first_of_every_key_stays_however_many_are_sorted_at_a_time(at_once, monkeypatch):
    monkeypatch.setattr(keys, "KEYS_AT_ONCE", at_once)
    draws = np.random.default_rng(1).integers(0, 2**64, 2000, np.uint64)
    few = np.array([0, 2**63, 2**64 - 1, 7, 7, 7, 0], np.uint64)
    values = np.concatenate([few, draws, draws[:400], few])
    seen: set[int] = set()
    expected = [not (key in seen or seen.add(key)) for key in values.tolist()]
    assert keys.first_occurrences(values).tolist() == expected


def test_scripts_of_languages():
    for lang, text, stays in (
        ("ja", "リリースモードで Android パッケージをビルドする", True),
        ("zh_CN", "Это предложение по-русски.", False),
        ("sr_Latn", "Ово је реченица", False),
        ("tlh", "Это предложение", True),  # of whose scripts nobody said anything
        ("he", "2019 – 2020!", True),
    ):
        assert len(cleaned([("Some sentence or other.", text)], Filters(), lang).source) == stays


def test_keys_stay_what_they_are():
    """They are on disk in folders of work that a newer version goes on with."""
    out = cleaned([("Ten (10) pigs", "Straße ½ ﬁ")])
    every = (*out.source_keys, *out.target_keys, *sentence_keys([""]), *out.exact, *out.near)
    assert [f"{key:016x}" for key in every] == KEYS


def test_words_with_other_marks_are_other_words():
    for first, second, are_same in (
        ("ข้าว", "ขาว", False),
        ("Ọ̀wọ̀", "ọ́wọ́", False),
        ("कि", "क", False),
        ("İstanbul", "istanbul", True),
        ("Don´t", "don't", True),
        ("❤\ufe0f 1", "1", True),
    ):
        one, other = sentence_keys(normalised([first, second]))
        assert (one == other) == are_same


def test_folding_has_every_character():
    _, count, _ = folding()
    assert all(unicodedata.category(chr(code)) in ("Cn", "Co") for code in range(0x40000, CODES) if code >> 12 != 0xE0)
    every = [chr(code) for code in range(0x110, 0x2FA20) if not 0xD800 <= code < 0xE000]
    characters, counts = folded(Columns.of(every))
    expected = list(map(fold, every))
    assert characters.tobytes().decode("utf-32-le") == "".join(expected)
    assert counts.tolist() == list(map(len, expected)) and count[ord(" ")] == 0


def test_normalising_changes_what_is_invisible_or_composed():
    for text, expected in (
        ("  two words\t \n", "two words"),
        ("\ufeffsoft\u00adhyphen and bell\x07", "softhyphen and bell"),
        ("one\u2028two\x0bthree\rfour\u00a0five", "one two three four five"),
        ("e\x07\u0301 ＡＢＣ ½", "\u00e9 ＡＢＣ ½"),
        ("\u0645\u06cc\u200c\u062e", "\u0645\u06cc\u200c\u062e"),
    ):
        assert normalise(text) == normalise(expected) == expected
    start = time.monotonic()
    assert len(normalise("a" + "\u0301\u0316" * 100_000)) > 199_000
    assert time.monotonic() - start < 5  # also for long runs of marks
