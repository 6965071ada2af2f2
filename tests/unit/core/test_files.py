"""Result files are complete or absent, whatever ends the process."""

import multiprocessing
import os
import signal
import stat
from unittest.mock import Mock

import pytest

from fairseq_mtmoe.core import files
from fairseq_mtmoe.core.errors import UserError
from tests.helpers.refused import refused

refuse = Mock(side_effect=OSError(30, "Read-only file system"))


@pytest.fixture
def path(tmp_path):
    """A file with "old" in it, alone in its folder."""
    (tmp_path / "a.txt").write_text("old")
    return tmp_path / "a.txt"


def test_a_failure_leaves_the_old_file_and_nothing_else(path, monkeypatch):
    with pytest.raises(RuntimeError), files.replacing(path) as partial:
        partial.write_text("half")
        assert partial.suffix == ".txt"
        raise RuntimeError
    with refused("a.txt/b.txt"):
        files.write_text(path / "b.txt", "")
    for step in ("fsync", "replace"):  # the disk is full or read-only at the end
        with monkeypatch.context() as patch, refused("a.txt"):
            patch.setattr(os, step, refuse)
            files.write_text(path, "new")
    assert path.read_text() == "old" and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("flushes_folders", [True, False], ids=["local", "a network's"])
def test_new_folders_and_file_reach_the_disk_as_far_as_it_can(tmp_path, monkeypatch, flushes_folders):
    log, flush, replace = [], os.fsync, os.replace

    def note_flush(descriptor):
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        log.append("folder" if is_folder else "file")
        if is_folder and not flushes_folders:
            raise OSError(22, "Invalid argument")
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", note_flush)
    monkeypatch.setattr(os, "replace", lambda source, target: replace(source, target) or log.append("rename"))
    path = tmp_path / "new" / "newer" / "a.txt"
    files.write_text(path, "größer\n")
    assert log == ["folder", "folder", "file", "rename", "folder"] and path.read_bytes() == "größer\n".encode()


def test_a_best_checkpoint_is_missing_before_the_first_validation(tmp_path):
    best, last = tmp_path / "checkpoint_best.pt", tmp_path / "checkpoint_last.pt"
    with pytest.raises(UserError, match=r"does not exist: a run.s first validation writes it\.$"):
        files.checkpoint_file(best)
    last.write_bytes(b"")
    with refused("checkpoint_best.pt", "checkpoint_last.pt"):
        files.checkpoint_file(best)
    best.write_bytes(b"")
    assert files.checkpoint_file(best) == best


def kill_while_writing(path):
    """Return the partial file that a killed process leaves."""

    def write():
        with files.replacing(path) as partial:
            partial.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)

    before = set(path.parent.iterdir())
    process = multiprocessing.get_context("fork").Process(target=write)
    process.start()
    process.join()
    (left,) = set(path.parent.iterdir()) - before
    return left


def test_what_a_killed_process_left_is_removed_by_the_next_write(path, tmp_path):
    kill_while_writing(path)
    of_another_file = kill_while_writing(tmp_path / "a2.txt")
    assert path.read_text() == "old"
    files.write_text(path, "new")
    assert path.read_text() == "new" and set(tmp_path.iterdir()) == {path, of_another_file}
    left = kill_while_writing(path)
    left.unlink()
    left.mkdir()  # as `new_folder` leaves
    (left / "file").write_text("half")
    files.write_text(path, "newer")
    assert set(tmp_path.iterdir()) == {path, of_another_file}


def test_a_folder_is_complete_or_absent(tmp_path):
    target = tmp_path / "new" / "a.b"
    with pytest.raises(RuntimeError), files.new_folder(target) as partial:
        (partial / "file").write_text("half")
        raise RuntimeError
    with refused("a.b"), files.new_folder(target):
        refuse()
    assert list(target.parent.iterdir()) == []
    with files.new_folder(target) as partial:
        (partial / "file").write_text("whole")
    assert list(target.parent.iterdir()) == [target] and (target / "file").read_text() == "whole"
    for taken in (target, target / "file"):
        with refused(taken.name), files.new_folder(taken):
            pass
    with refused("later"), files.new_folder(tmp_path / "later"):
        (tmp_path / "later").mkdir()  # as another command may


def test_a_folder_gives_way_if_it_has_nothing_else(tmp_path, monkeypatch):
    target = tmp_path / "new"
    target.mkdir()
    with files.new_folder(target, ()) as partial:
        (partial / "a").write_text("first")
    with refused(target.name), files.new_folder(target, ("b",)):
        pass
    (tmp_path / "link").symlink_to(target)
    with files.new_folder(tmp_path / "link", ("a", "b")) as partial:
        (partial / "b").write_text("second")
    assert [path.name for path in target.iterdir()] == ["b"]
    rename = os.rename
    monkeypatch.setattr(os, "rename", lambda old, new: refuse() if old == partial else rename(old, new))
    with refused("new"), files.new_folder(target, ("b",)) as partial:
        (partial / "b").write_text("third")
    assert (target / "b").read_text() == "second" and len(list(tmp_path.iterdir())) == 2


def test_what_may_still_be_written_is_left_alone(path, monkeypatch):
    dead = kill_while_writing(path)
    *_, host, number, _, _ = dead.name.split(".")
    names = dead.name.replace(number, str(os.getppid())), dead.name.replace(host, "elsewhere"), f"{dead.name}.bak"
    left = {dead.with_name(name) for name in names}
    for file in left:
        file.write_text("half")
    files.write_text(path, "new")
    assert set(path.parent.iterdir()) == {path, *left}
    monkeypatch.setattr(os, "kill", Mock(side_effect=PermissionError))  # a process of another user
    files.write_text(path, "newer")
    assert set(path.parent.iterdir()) == {path, *left}


def test_what_is_no_regular_file_is_refused_before_it_is_opened(path, tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for link, target in (("circle", "circle"), ("dangling", "gone"), ("link", path)):
        (tmp_path / link).symlink_to(target)
    for kind in ("folder", "pipe", "circle", "dangling", "none", "a\0b", "a" * 300):
        with pytest.raises(UserError, match="must be a checkpoint"):
            files.read_bytes(f"{tmp_path}/{kind}", "a checkpoint")
    for wrong in ("link", "pipe"):  # a file that is changed where it lies
        with refused(wrong):
            files.open_in_place(tmp_path / wrong, "w")
    for text in ("new", "er"):
        with files.open_in_place(tmp_path / "log", "a") as log:
            log.write(text)
    assert (tmp_path / "log").read_text() == "newer"


def test_an_output_that_exists_or_is_an_input_is_refused(path, tmp_path):
    (tmp_path / "link").symlink_to(path)
    for output, overwrite in ((path, True), (tmp_path, False), (tmp_path / "link", True)):
        with refused("OUT"):
            files.output_file("OUT", output, overwrite, IN=path)
    with refused(tmp_path.name):
        files.output_file("OUT", tmp_path, True)
    assert files.output_file("OUT", tmp_path / "new", False, IN=path) == tmp_path / "new"
    assert files.output_file("OUT", path, True) == path


@pytest.mark.parametrize(("content", "read"), [
    (b"gr\xf6\xdfer", files.read_text), (b"one\rtwo\r", files.text_lines), (b"{", files.read_json),
    (b"[" * 100_000, files.read_json), (b"1" * 5000, files.read_json),
])  # fmt: skip
def test_a_damaged_file_and_one_that_cannot_be_read_are_refused(path, monkeypatch, content, read):
    path.write_bytes(content)
    with refused("a.txt"):
        read(path)
    monkeypatch.setattr(files.Path, "read_bytes", refuse)
    with refused("a.txt"):
        read(path)


# Line ends of Python's splitlines(), universal newlines or Unicode.
BREAKS = "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
ODD = [*(f"one{mark}two" for mark in BREAKS), "", f"{BREAKS}end"]


@pytest.mark.parametrize(("text", "lines"), [
    ("\n".join([*ODD, "\r\r", ""]), [*ODD, "\r"]),  # of two carriage returns, the second is Windows's
    ("one\r\ntwo\rthree\r\n\r\nfour", ["one", "two\rthree", "", "four"]),
    ("", []), ("\n\n", ["", ""]), ("one\r", ["one"]),
], ids=range(5))  # fmt: skip
def test_a_line_feed_ends_a_line_and_nothing_else_does(path, text, lines):
    path.write_bytes(text.encode())
    assert files.text_lines(path) == lines


def test_a_folder_to_write_to_is_tried_and_left_as_it_was(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    files.check_writable(tmp_path)
    files.check_writable(tmp_path / "new" / "folder")
    with refused("file/folder"):
        files.check_writable(tmp_path / "file" / "folder")
    monkeypatch.setattr(files.tempfile, "TemporaryFile", refuse)
    with refused("new/folder"):
        files.check_writable(tmp_path / "new" / "folder")
    assert [path.name for path in tmp_path.rglob("*")] == ["file"]
