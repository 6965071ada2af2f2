"""Columns of TSV and keys of JSON lines."""

import json

import pytest

from tests.helpers.reading import all_lines, corpus, found_in, places
from tests.helpers.refused import refused


def rows(tmp_path, *values, **settings):
    lines = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values]
    (tmp_path / "a").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return corpus(tmp_path / "a", **settings)


@pytest.mark.parametrize(
    ("row", "settings"),
    [
        ({"translation": {"de": "Haus", "en": "house"}}, {}),
        ({"id": 1, "de": "Haus", "en": "house"}, {}),
        ({"de_DE": "Haus", "en-GB": "house"}, {"source": "en_XX"}),
        ({"target": "Haus", "source": "house", "score": 1.0}, {}),
        ({"a": {"b": "house"}, "c.d": "Haus"}, {"fields": {"source": "a.b", "target": "c.d"}}),
    ],
)
def test_keys_that_are_found_or_given(tmp_path, row, settings):
    assert found_in(rows(tmp_path, row, row, **settings)) == ([(1, "house", "Haus"), (2, "house", "Haus")], [])


def test_lines_before_the_first_object_do_not_hide_the_others(tmp_path):
    pairs, bad = found_in(rows(tmp_path, *[""] * 1500, {"en": "a", "de": "b"}))
    assert pairs == [(1501, "a", "b")] and {line.reason for line in bad} == {"empty"}


def test_lines_that_have_no_pair(tmp_path):
    good = {"en": "a", "de": "b"}
    wrong = {
        "keys": ["[]", '{"en": "a"', '{"en": "a", "de": 3}', '{"en": "a"}', '{"a":' * 5000, "9" * 5000],
        "untranslated": ['{"en": "a", "de": null}'],
        "empty": ['{"en": "a", "de": " "}', ""],
        "encoding": ['{"en": "a", "de": "\\ud800"}'],
        "nul": ['{"en": "a", "de": "b\\u0000"}'],
    }
    lines = [line for several in wrong.values() for line in several]
    pairs, bad = found_in(rows(tmp_path, good, *lines, good))
    assert [line.reason for line in bad] == [reason for reason, several in wrong.items() for _ in several]
    assert [number for number, _, _ in pairs] == [1, len(lines) + 2] and all_lines(pairs, bad) == len(lines) + 2


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "a").write_bytes(b'{"en": "a", "de": "b"}\n{"en": "\xff", "de": "b"}\n')
    pairs, bad = found_in(corpus(tmp_path / "a"))
    assert len(pairs) == 1 and places(bad) == [("a", 2, "encoding", 1)]


def test_keys_that_nobody_knows(tmp_path):
    with refused("fields"):
        found_in(rows(tmp_path, {"text": "a", "label": "b"}))
    with refused("fields"):
        found_in(rows(tmp_path, {"en": "a", "de": "b"}, fields={"source": "en", "target": "nowhere"}))


ENGLISH = "The sentence that was given to the house"
GERMAN = "Der Satz, den man dem Haus gegeben hat"


def table(tmp_path, *rows, **settings):
    (tmp_path / "a").write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return corpus(tmp_path / "a", **settings)


@pytest.mark.parametrize("fields", [{"source": 3, "target": 1}, {"source": "English", "target": "Deutsch"}])
def test_columns_that_are_given(tmp_path, fields):
    rows = [("Deutsch", "0.5", "English"), ("Eins", "0.7", "One"), ("Zwei", "0.1", "Two")]
    pairs, bad = found_in(table(tmp_path, *rows, fields=fields))
    skipped = isinstance(fields["source"], str)
    assert pairs[-2:] == [(2, "One", "Eins"), (3, "Two", "Zwei")]
    assert len(pairs) == 3 - skipped and not bad


@pytest.mark.parametrize("header", [("id", "de", "en"), ("id", "de_DE", "en-GB"), ("id", "Target", "src")])
def test_a_first_line_that_names_the_languages(tmp_path, header):
    pairs, bad = found_in(table(tmp_path, header, ("1", "x", "y"), ("2", "v", "w")))
    assert pairs == [(2, "y", "x"), (3, "w", "v")] and not bad


def test_columns_of_codes_are_no_line_of_names(tmp_path):
    pairs, bad = found_in(table(tmp_path, *[("en", "de", ENGLISH, GERMAN)] * 3))
    assert pairs == [(line, ENGLISH, GERMAN) for line in (1, 2, 3)] and not bad


@pytest.mark.parametrize(("first", "reason"), [("# a comment", "columns"), ("", "empty"), ("a\t\0", "nul")])
def test_a_line_before_the_one_of_names_is_reported(tmp_path, first, reason):
    pairs, bad = found_in(table(tmp_path, (first,), ("id", "de", "en"), ("1", "x", "y"), ("2", "v", "w")))
    assert pairs == [(3, "y", "x"), (4, "w", "v")] and places(bad) == [("a", 1, reason, 1)]


@pytest.mark.parametrize(
    ("languages", "texts", "others"),
    [
        (("en", "de"), (ENGLISH, GERMAN), ()),
        (("de", "en"), (GERMAN, ENGLISH), ("0.98", "https://a.example/b", "de")),
        (("zh", "en"), ("这是一个句子", ENGLISH), ("x.html",)),
    ],
)
def test_columns_are_found_by_what_is_in_them(tmp_path, languages, texts, others):
    for in_order in (texts, texts[::-1]):
        row = (*others, *in_order)
        pairs, bad = found_in(table(tmp_path, *[row] * 20, source=languages[0], target=languages[1]))
        assert pairs[0] == (1, *texts) and len(pairs) == 20 and not bad


@pytest.mark.parametrize(
    ("rows", "settings", "name"),
    [
        ([(GERMAN, "Een zin voor het huis")], {"target": "nl", "source": "de"}, "a"),
        ([(ENGLISH, GERMAN, "Noch ein Text dazu")], {}, "a"),
        ([("a", "b")], {"fields": {"source": 1, "target": 3}}, "fields: target"),
        ([("a", "b")], {"fields": {"source": "x", "target": 2}}, "fields: source"),
        ([("a", "b")], {"fields": {"source": 1}}, "fields: target"),
        ([("only one",)], {}, "a"),
    ],
)
def test_what_cannot_be_told_is_asked(tmp_path, rows, settings, name):
    with refused(name):
        found_in(table(tmp_path, *rows, **settings))


def test_lines_with_other_columns_and_empty_ones(tmp_path):
    rows = [("a", "b"), ("c",), ("d", "e", "f"), ("",), ("g", " "), ("h", "i")]
    pairs, bad = found_in(table(tmp_path, *rows, fields={"source": 1, "target": 2}))
    assert pairs == [(1, "a", "b"), (6, "h", "i")] and all_lines(pairs, bad) == 6
    reasons = [(2, "columns"), (3, "columns"), (4, "empty"), (5, "empty")]
    assert places(bad) == [("a", line, reason, 1) for line, reason in reasons]


def test_a_text_that_is_marked_as_absent(tmp_path):
    rows = [("a", "__NULL__"), ("_ _ NULL _ _", "b"), ("c", "d")]
    files = table(tmp_path, *rows, fields={"source": 1, "target": 2, "absent": "NULL"})
    pairs, bad = found_in(files)
    assert pairs == [(3, "c", "d")] and [line.reason for line in bad] == ["untranslated"] * 2


@pytest.mark.parametrize("head", [("en", "de"), ("Source", "Target")])
def test_a_line_of_names_is_no_pair_where_columns_are_given_by_number(tmp_path, head):
    files = table(tmp_path, head, ("a house", "ein Haus"), ("a", "b"), fields={"source": 1, "target": 2})
    assert found_in(files) == ([(2, "a house", "ein Haus"), (3, "a", "b")], [])
