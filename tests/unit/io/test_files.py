"""Result files are complete or absent, whatever ends the process."""

import multiprocessing
import os
import signal
import stat
from unittest.mock import Mock

import pytest

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io import files
from tests.helpers.refused import refused

refuse = Mock(side_effect=OSError(30, "Read-only file system"))


@pytest.fixture
def path(tmp_path):
    """A file with "old" in it, alone in its folder."""
    (tmp_path / "a.txt").write_text("old")
    return tmp_path / "a.txt"


def test_a_failure_leaves_the_old_file_and_nothing_else(path):
    with pytest.raises(RuntimeError), files.replacing(path) as partial:
        partial.write_text("half")
        assert partial.suffix == ".txt"
        raise RuntimeError
    assert path.read_text() == "old" and list(path.parent.iterdir()) == [path]


def test_what_cannot_be_written_is_named(path):
    for write in (lambda path: files.write_text(path, ""), lambda path: files.new_folder(path).__enter__()):
        with refused("a.txt/b.txt"):
            write(path / "b.txt")


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_disk_that_is_full_or_read_only_at_the_end_keeps_the_old_file(path, monkeypatch, step):
    monkeypatch.setattr(os, step, refuse)
    with pytest.raises(UserError, match=r"a\.txt` cannot be written: Read-only file system; what was there before is"):
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


def kill_while_writing(path):
    """The partial file that a killed process leaves."""

    def write():
        with files.replacing(path) as partial:
            partial.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)

    before = set(path.parent.iterdir())
    process = multiprocessing.get_context("fork").Process(target=write)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    (left,) = set(path.parent.iterdir()) - before
    return left


def test_what_a_killed_process_left_is_removed_by_the_next_write(path, tmp_path):
    assert kill_while_writing(path).suffix == ".txt"
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
        with refused("the output folder"), files.new_folder(taken):
            pass


def test_a_folder_gives_way_if_it_has_nothing_else(tmp_path, monkeypatch):
    target = tmp_path / "new"
    target.mkdir()
    with files.new_folder(target, ()) as partial:
        (partial / "a").write_text("first")
    for names in ((), ("b",)):
        with refused("the output folder"), files.new_folder(target, names):
            pass
    (tmp_path / "link").symlink_to(target)
    with files.new_folder(tmp_path / "link", ("a", "b")) as partial:
        (partial / "b").write_text("second")
    assert [path.name for path in target.iterdir()] == ["b"]
    with pytest.raises(RuntimeError), files.new_folder(target, ("b",)) as partial:
        (partial / "b").write_text("half")
        raise RuntimeError
    rename = os.rename
    monkeypatch.setattr(os, "rename", lambda old, new: refuse() if old == partial else rename(old, new))
    with refused("new"), files.new_folder(target, ("b",)) as partial:
        (partial / "b").write_text("third")
    assert (target / "b").read_text() == "second" and len(list(tmp_path.iterdir())) == 2
    (target / "b").unlink()
    (target / "b").mkdir()
    with refused("the output folder"), files.new_folder(target, ("b",)):
        pass


def test_what_may_still_be_written_is_left_alone(path, monkeypatch):
    dead = kill_while_writing(path)
    *_, host, number, _, _ = dead.name.split(".")
    names = dead.name.replace(number, str(os.getppid())), dead.name.replace(host, "elsewhere"), f"{dead.name}.bak"
    running, *others = map(dead.with_name, names)
    for file in (running, *others):
        file.write_text("half")
    files.write_text(path, "new")
    assert set(path.parent.iterdir()) == {path, running, *others}
    monkeypatch.setattr(os, "kill", lambda *_: (_ for _ in ()).throw(PermissionError))  # a process of another user
    files.write_text(path, "newer")
    assert running.exists()
    monkeypatch.undo()
    assert files._is_running(os.getpid()) and not files._is_running(10**30)


def test_what_is_no_file_is_said_before_it_is_opened(path, tmp_path):
    link, pipe, circle, dangling = (tmp_path / name for name in "bdef")
    link.symlink_to(path)
    os.mkfifo(pipe)
    circle.symlink_to(circle)
    dangling.symlink_to("gone")
    assert files.regular_file(path) == path and files.regular_file(link) == link
    for wrong, words in (
        (tmp_path, "is a folder"), (pipe, "is a pipe"), (circle, "is a link that leads in a circle"),
        (dangling, "is a link that leads nowhere"), ("none", "there is none"), ("a\0b", "is no file name"),
        (tmp_path / ("a" * 300), "cannot be read: File name too long"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=f"` must be a checkpoint, but {words}"):
            files.regular_file(wrong, "a checkpoint")
    with refused("OUT"):
        files.output_file("OUT", circle, False, IN=tmp_path / "in")
    assert files.output_file("OUT", tmp_path / "new", False, IN=tmp_path / "in") == tmp_path / "new"


def test_what_is_read_must_be_a_file_in_utf8(path, monkeypatch):
    path.write_bytes("größer\r\n".encode())
    assert files.read_text(path) == "größer\r\n" and files.read_bytes(path) == "größer\r\n".encode()
    path.write_bytes(b"gr\xf6\xdfer")
    with pytest.raises(UserError, match=r"a\.txt` must be UTF-8 text, but is not at byte 2"):
        files.read_text(path)
    path.write_bytes(b"un\n" + 10_000 * b"x" + b"\xff\n")
    with pytest.raises(UserError, match="byte 10003"):
        files.text_lines(path)
    path.write_bytes(b"one\rtwo\r")  # no lines
    with refused("a.txt"):
        files.text_lines(path)
    monkeypatch.setattr(files.Path, "read_bytes", refuse)
    for read in (files.read_bytes, files.read_text, files.read_json):
        with refused("a.txt"):
            read(path, "a list")


def test_json_that_is_none_is_one_sentence(path):
    path.write_text('{"a": [1]}')
    assert files.read_json(path) == {"a": [1]}
    for text in ("{", "[" * 100_000, "1" * 5000):
        path.write_text(text)
        with refused("a.txt"):
            files.read_json(path)


# What Python's splitlines() and universal newlines, or Unicode, take for the end of a line.
BREAKS = "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
ODD = [*(f"one{mark}two" for mark in BREAKS), "", f"{BREAKS}end"]


@pytest.mark.parametrize(("text", "lines"), [
    ("\n".join(ODD), ODD),
    ("\n".join([*ODD, "\r\r", ""]), [*ODD, "\r"]),  # of two carriage returns, the second is Windows's
    ("one\r\ntwo\rthree\r\n\r\nfour", ["one", "two\rthree", "", "four"]),
    ("", []),
    ("\n\n", ["", ""]),
    ("one\r", ["one"]),
], ids=range(6))  # fmt: skip
def test_a_line_feed_ends_a_line_and_nothing_else_does(path, text, lines):
    assert len(ODD) == 11 and all(len(line.splitlines()) > 1 for line in ODD if line)
    path.write_bytes(text.encode())
    assert files.text_lines(path) == lines


def test_a_folder_to_write_to_is_tried_and_left_as_it_was(tmp_path, monkeypatch):
    files.check_writable(tmp_path / "new" / "folder")
    (tmp_path / "old").mkdir()
    files.check_writable(tmp_path / "old")
    assert [path.name for path in tmp_path.rglob("*")] == ["old"]
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "file", tmp_path / "file" / "folder"):
        with refused(str(wrong)):
            files.check_writable(wrong)
    monkeypatch.setattr(files.tempfile, "TemporaryFile", refuse)
    with refused("new/folder"):
        files.check_writable(tmp_path / "new" / "folder")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "old"]


def test_a_file_that_is_changed_where_it_lies_is_no_link_and_no_pipe(path, tmp_path):
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(path)
    os.mkfifo(pipe)
    for wrong in (link, pipe):
        for mode in ("a", "w", "r+b"):
            with refused(wrong.name):
                files.open_in_place(wrong, mode)
    assert path.read_text() == "old"
    for text in ("new", "er"):
        with files.open_in_place(tmp_path / "log", "a") as log:
            log.write(text)
    assert (tmp_path / "log").read_text() == "newer"


def test_nobody_can_know_the_name_of_an_unfinished_file(path):
    with files.replacing(path) as first, files.replacing(path) as second:
        assert first != second
        for partial in (first, second):
            partial.write_text("new")


def test_a_folder_that_appears_meanwhile_is_kept(tmp_path):
    with refused("the output folder"), files.new_folder(tmp_path / "new"):
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "of another command").write_text("")
    assert [path.name for path in tmp_path.rglob("*")] == ["new", "of another command"]
