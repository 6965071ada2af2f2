"""Result files are complete or absent."""

import pytest

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.files import replacing, write_text


def test_text_is_written_as_utf8_into_a_new_folder(tmp_path):
    write_text(tmp_path / "new" / "a.md", "größer\n")
    assert (tmp_path / "new" / "a.md").read_bytes() == "größer\n".encode()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.md"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError), replacing(path) as partial:
        partial.write_text("half")
        assert partial.suffix == ".txt"
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_said_in_one_sentence(tmp_path):
    path = tmp_path / "a.txt"
    with pytest.raises(UserError, match=r"a\.txt` cannot be written: No space left"), replacing(path):
        raise OSError(28, "No space left on device")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_text(tmp_path / "file" / "a.txt", "")
