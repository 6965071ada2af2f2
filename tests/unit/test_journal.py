"""A journal keeps what was added, whatever tore it, and has one writer at a time."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_mtmoe.io.journal import Journal, entries
from tests.helpers.refused import refused

VALUES = [{"a": 1}, ["ü\u2028\n", None], "", 0]


def write(path, values):
    journal = Journal(path)
    for value in values:
        journal.add(value)
    journal.close()


def test_what_was_added_is_read(tmp_path):
    path = tmp_path / "new" / "journal"
    assert entries(path) == []
    write(path, VALUES[:2])
    write(path, VALUES[2:])
    assert entries(path) == VALUES


@settings(deadline=None)  # a disk may be slow
@given(size=st.integers(0, 200), torn=st.binary(max_size=40))
def test_a_torn_end_is_passed_over_and_written_over(tmp_path_factory, size, torn):
    path = tmp_path_factory.getbasetemp() / "torn"
    path.unlink(missing_ok=True)
    write(path, VALUES)
    content = path.read_bytes()[:size]
    path.write_bytes(content + torn)
    found = entries(path)
    assert found == VALUES[: len(found)] and len(found) >= content.count(b"\n")
    write(path, ["more"])
    assert entries(path) == [*found, "more"]


def test_one_writes_at_a_time(tmp_path):
    path = tmp_path / "journal"
    first = Journal(path)
    first.add(1)
    with refused(str(tmp_path)):
        Journal(path)
    assert entries(path) == [1]
    first.clear()
    first.add(2)
    first.close()
    again = Journal(path)
    assert entries(path) == [2]
    again.remove()
    assert not path.exists()


def test_a_line_of_another_kind_is_a_sentence(tmp_path):
    write(tmp_path / "journal", [{"a": {"x": 1}}, {"a": {"x": "1"}}])
    with refused("journal", "a.x") as caught:
        entries(tmp_path / "journal", {"a": dict[str, int]})
    assert str(caught.value).startswith("Line 2 ")


def test_what_cannot_be_written_is_said_in_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with refused("journal"):
        Journal(tmp_path / "file" / "journal")
