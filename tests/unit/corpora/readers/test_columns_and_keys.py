"""Columns of TSV and keys of JSON lines."""

import json

import pytest

from tests.helpers.reading import found_in, told, written
from tests.helpers.refused import refused


def rows(tmp_path, *values, **settings):
    lines = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values]
    return written(tmp_path, "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"), **settings)


def test_keys_that_are_found_or_given(tmp_path):
    for row, settings in (
        *(({"translation": {"de": "Haus", "en": "house"}}, {}), ({"id": 1, "de": "Haus", "en": "house"}, {})),
        ({"de_DE": "Haus", "en-GB": "house"}, {"source": "en_XX"}),
        ({"target": "Haus", "source": "house", "score": 1.0}, {}),
        ({"a": {"b": "house"}, "c.d": "Haus"}, {"fields": {"source": "a.b", "target": "c.d"}}),
    ):
        assert found_in(rows(tmp_path, row, row, **settings)) == ([(1, "house", "Haus"), (2, "house", "Haus")], [])


def test_lines_that_have_no_pair(tmp_path):
    good = {"en": "a", "de": "b"}
    wrong = {
        "keys": ["[]", '{"en": "a"', '{"en": "a", "de": 3}', '{"en": "a"}', '{"a":' * 5000, "9" * 5000],
        "untranslated": ['{"en": "a", "de": null}'],
        "empty": ['{"en": "a", "de": " "}', ""],
        "encoding": ['{"en": "a", "de": "\\ud800"}', '{"en": "\udcff", "de": "b"}'],  # half a character, and a byte
        "nul": ['{"en": "a", "de": "b\\u0000"}'],
    }
    lines = [line for several in wrong.values() for line in several]
    reasons = enumerate((reason for reason, several in wrong.items() for _ in several), 2)
    bad = [("a", line, reason) for line, reason in reasons]
    assert told(rows(tmp_path, good, *lines, good)) == ([(1, "a", "b"), (len(lines) + 2, "a", "b")], bad)


def table(tmp_path, *rows, **settings):
    return written(tmp_path, "".join("\t".join(row) + "\n" for row in rows), **settings)


BY_NAME, BY_NUMBER = {"source": "English", "target": "Deutsch"}, {"source": 1, "target": 2}


@pytest.mark.parametrize(("rows", "fields", "pairs"), [
    ([("Deutsch", "0.5", "English"), ("Eins", "0.7", "One")], {"source": 3, "target": 1},
     [(1, "English", "Deutsch"), (2, "One", "Eins")]),
    ([("Deutsch", "0.5", "English"), ("Eins", "0.7", "One")], BY_NAME, [(2, "One", "Eins")]),
    ([("id", "de", "en"), ("1", "x", "y"), ("2", "v", "w")], {}, [(2, "y", "x"), (3, "w", "v")]),
    ([("id", "de_DE", "en-GB"), ("1", "x", "y")], {}, [(2, "y", "x")]),
    ([("id", "Target", "src"), ("1", "x", "y")], {}, [(2, "y", "x")]),
    ([("en", "de"), ("a house", "ein Haus")], BY_NUMBER, [(2, "a house", "ein Haus")]),  # a line of names is no pair
    ([("Source", "Target"), ("a house", "ein Haus")], BY_NUMBER, [(2, "a house", "ein Haus")]),
])  # fmt: skip
def test_columns_that_are_given_or_named_by_a_first_line(tmp_path, rows, fields, pairs):
    assert found_in(table(tmp_path, *rows, fields=fields)) == (pairs, [])


def test_a_line_before_the_one_of_names_is_reported(tmp_path):
    files = table(tmp_path, ("# a comment",), ("id", "de", "en"), ("1", "x", "y"), ("2", "v", "w"))
    assert told(files) == ([(3, "y", "x"), (4, "w", "v")], [("a", 1, "columns")])


def test_columns_and_keys_that_nothing_tells_are_asked_for(tmp_path):
    for fields in ({}, {"source": "text", "target": "nowhere"}):
        with refused("fields"):
            found_in(rows(tmp_path, {"text": "a", "label": "b"}, fields=fields))
    for row, fields, name in (
        (("Ein Haus", "A house"), {}, "a"),
        (("en", "en", "de"), {}, "a"),  # either could be meant
        (("a", "b"), {"source": 1, "target": 3}, "fields: target"),
        (("a", "b"), {"source": "x", "target": 2}, "fields: source"),
        (("a", "b"), {"source": 1, "target": 1}, "fields of"),
    ):
        with refused(name):
            found_in(table(tmp_path, row, row, fields=fields))


def test_lines_with_other_columns_and_texts_that_are_empty_or_marked_as_absent(tmp_path):
    rows = [("a", "b"), ("c",), ("d", "e", "f"), ("",), ("g", " "), ("a", "__NULL__"), (" - ", "j"), ("no -", "h")]
    reasons = ("columns", "columns", "empty", "empty", "untranslated", "untranslated")
    fields = {"source": 1, "target": 2, "absent": "-", "incomplete": "NULL"}
    bad = [("a", line, reason) for line, reason in enumerate(reasons, 2)]
    assert told(table(tmp_path, *rows, fields=fields)) == ([(1, "a", "b"), (8, "no -", "h")], bad)
