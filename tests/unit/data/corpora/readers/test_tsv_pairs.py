import pytest

from fairseq_mtmoe.errors import UserError
from tests.helpers.reading import all_lines, corpus, found_in, places

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
        (("uk", "pl"), ("Це речення для будинку", "To jest zdanie dla domu"), ("17",)),
        (("zh", "en"), ("这是一个句子", ENGLISH), ("x.html",)),
        (("hi_IN", "en_XX"), ("यह एक वाक्य है", ENGLISH), ()),
    ],
)
def test_columns_are_found_by_what_is_in_them(tmp_path, languages, texts, others):
    for in_order in (texts, texts[::-1]):
        row = (*others, *in_order)
        pairs, bad = found_in(table(tmp_path, *[row] * 20, source=languages[0], target=languages[1]))
        assert pairs[0] == (1, *texts) and len(pairs) == 20 and not bad


@pytest.mark.parametrize(
    ("rows", "settings", "sentence"),
    [
        ([(GERMAN, "Een zin voor het huis")], {"target": "nl", "source": "de"}, "their content does not tell"),
        ([(ENGLISH, GERMAN, "Noch ein Text dazu")], {}, r"told which columns hold en and de \(`fields: \{source: 1"),
        ([("a", "b")], {"fields": {"source": 1, "target": 3}}, "number or name of one of its 2 columns, but is 3"),
        ([("a", "b")], {"fields": {"source": 0, "target": 2}}, "but is 0 instead"),
        ([("a", "b")], {"fields": {"source": "x", "target": 2}}, "but is 'x' instead"),
        ([("a", "b")], {"fields": {"source": 1}}, "but is None instead"),
        ([("a", "b")], {"fields": {"source": 1, "target": 1}}, "two different columns"),
        ([("only one",)], {}, "must be a corpus in one of the formats"),
    ],
)
def test_what_cannot_be_told_is_asked(tmp_path, rows, settings, sentence):
    with pytest.raises(UserError, match=sentence):
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


def test_bytes_that_are_no_text_in_a_column_that_nobody_reads(tmp_path):
    (tmp_path / "a").write_bytes(b"a\tb\t\xff\nc\td\te\n")
    pairs, bad = found_in(corpus(tmp_path / "a", fields={"source": 1, "target": 2}))
    assert pairs == [(2, "c", "d")] and places(bad) == [("a", 1, "encoding", 1)]


@pytest.mark.parametrize("head", [("en", "de"), ("de", "en"), ("Source", "Target")])
def test_a_line_of_names_is_no_pair_where_columns_are_given_by_number(tmp_path, head):
    files = table(tmp_path, head, ("a house", "ein Haus"), ("a", "b"), fields={"source": 1, "target": 2})
    assert found_in(files) == ([(2, "a house", "ein Haus"), (3, "a", "b")], [])


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        (("en", "de", ENGLISH, GERMAN), (3, 4)),  # codes in columns that are not asked for
        (("source code", "Quelltext", "en", "de"), (1, 2)),
    ],
)
def test_a_first_line_without_names_is_a_pair(tmp_path, row, columns):
    source, target = columns
    files = table(tmp_path, row, fields={"source": source, "target": target})
    assert found_in(files) == ([(1, row[source - 1], row[target - 1])], [])
