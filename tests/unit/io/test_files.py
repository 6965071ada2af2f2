"""Result files are complete or absent."""

import os
import stat
import subprocess
import sys

import pytest

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io import files
from fairseq_mtmoe.io.files import (
    check_writable,
    new_folder,
    output_file,
    read_bytes,
    read_json,
    read_text,
    regular_file,
    replacing,
    text_lines,
    write_text,
)


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


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_disk_that_is_full_or_read_only_at_the_end_keeps_the_old_file(tmp_path, monkeypatch, step):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def refuse(*arguments):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, step, refuse)
    with pytest.raises(UserError, match=r"a\.txt` cannot be written: Read-only file system; what was there before is"):
        write_text(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("flushes_folders", [True, False], ids=["local", "a network's"])
def test_new_folders_and_file_reach_the_disk_as_far_as_it_can(tmp_path, monkeypatch, flushes_folders):
    log, flush, replace = [], os.fsync, os.replace

    def note_flush(descriptor):
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        log.append("folder" if is_folder else "file")
        if is_folder and not flushes_folders:
            raise OSError(22, "Invalid argument")
        flush(descriptor)

    def note_replace(source, target):
        replace(source, target)
        log.append("rename")

    monkeypatch.setattr(os, "fsync", note_flush)
    monkeypatch.setattr(os, "replace", note_replace)
    write_text(tmp_path / "new" / "newer" / "a.txt", "größer\n")
    assert log == ["folder", "folder", "file", "rename", "folder"]
    assert (tmp_path / "new" / "newer" / "a.txt").read_bytes() == "größer\n".encode()


KILLED_WHILE_WRITING = """
import os, signal, sys
from fairseq_mtmoe.io.files import replacing
with replacing(sys.argv[1]) as partial:
    partial.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def kill_while_writing(path):
    """The partial file that a killed process leaves."""
    before = set(path.parent.iterdir())
    result = subprocess.run([sys.executable, "-c", KILLED_WHILE_WRITING, str(path)])
    assert result.returncode == -9
    (left,) = set(path.parent.iterdir()) - before
    return left


def test_what_a_killed_process_left_is_removed_by_the_next_write(tmp_path):
    path, other = tmp_path / "checkpoint_last.pt", tmp_path / "checkpoint_last2.pt"
    path.write_text("old")
    assert kill_while_writing(path).suffix == ".pt"
    of_another_file = kill_while_writing(other)
    assert path.read_text() == "old"
    write_text(path, "new")
    assert path.read_text() == "new" and set(tmp_path.iterdir()) == {path, of_another_file}
    left = kill_while_writing(path)
    left.unlink()
    left.mkdir()  # as `new_folder` leaves
    (left / "file").write_text("half")
    write_text(path, "newer")
    assert set(tmp_path.iterdir()) == {path, of_another_file}


def test_a_folder_is_complete_or_absent(tmp_path):
    target = tmp_path / "new" / "a.b"
    with pytest.raises(RuntimeError), new_folder(target) as partial:
        (partial / "file").write_text("half")
        raise RuntimeError
    with (
        pytest.raises(UserError, match=r"a\.b` cannot be written: No space left on device; nothing"),
        new_folder(target),
    ):
        raise OSError(28, "No space left on device")
    assert list((tmp_path / "new").iterdir()) == []
    with new_folder(target) as partial:
        (partial / "file").write_text("whole")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.b"] and (target / "file").read_text() == "whole"
    for taken in (target, target / "file"):
        with pytest.raises(UserError, match="must be one that does not exist yet, but is"), new_folder(taken):
            pass
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"), new_folder(tmp_path / "file" / "folder"):
        pass


def test_a_folder_gives_way_if_it_has_nothing_else(tmp_path, monkeypatch):
    target = tmp_path / "new"
    target.mkdir()
    with new_folder(target, ()) as partial:
        (partial / "a").write_text("first")
    for names, says in (
        ((), "must be empty, or given with --overwrite, but"),
        (("b",), "nothing else to lose, such as a"),
    ):
        with pytest.raises(UserError, match=says), new_folder(target, names):
            pass
    (tmp_path / "link").symlink_to(target)
    with new_folder(tmp_path / "link", ("a", "b")) as partial:
        (partial / "b").write_text("second")
    assert [path.name for path in target.iterdir()] == ["b"]
    with pytest.raises(RuntimeError), new_folder(target, ("b",)) as partial:
        (partial / "b").write_text("half")
        raise RuntimeError
    rename = os.rename

    def refuse(old, new):
        if old == partial:
            raise OSError(30, "Read-only file system")
        rename(old, new)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(UserError, match="cannot be written"), new_folder(target, ("b",)) as partial:
        (partial / "b").write_text("third")
    assert (target / "b").read_text() == "second" and len(list(tmp_path.iterdir())) == 2
    (target / "b").unlink()
    (target / "b").mkdir()
    with pytest.raises(UserError, match="nothing else to lose, such as b"), new_folder(target, ("b",)):
        pass


def test_what_may_still_be_written_is_left_alone(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    dead = kill_while_writing(path)
    number = dead.name.split(".")[-2]
    running = dead.with_name(dead.name.replace(number, str(os.getppid())))
    of_another_host = dead.with_name(dead.name.replace(dead.name.split(".")[-3], "elsewhere"))
    not_ours = dead.with_name(dead.name + ".bak")
    for file in (running, of_another_host, not_ours):
        file.write_text("half")
    write_text(path, "new")
    assert set(tmp_path.iterdir()) == {path, running, of_another_host, not_ours}

    def refuse(process, signal):
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)  # a process of another user
    write_text(path, "newer")
    assert running.exists()
    monkeypatch.undo()
    assert files._is_running(os.getpid()) and not files._is_running(10**30)


def test_what_is_no_file_is_said_before_it_is_opened(tmp_path):
    file, link, folder, pipe, circle, dangling = (tmp_path / name for name in "abcdef")
    file.write_text("")
    link.symlink_to(file)
    folder.mkdir()
    os.mkfifo(pipe)
    circle.symlink_to(circle)
    dangling.symlink_to("gone")
    assert regular_file(file) == file and regular_file(link) == link
    for place, words in (
        (folder, "is a folder instead"), (pipe, "is a pipe instead"), (circle, "is a link that leads in a circle"),
        (dangling, "is a link that leads nowhere"), ("none", "there is none"), ("/dev/zero", "is a device instead"),
        ("a\0b", "is no file name"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=f"` must be a checkpoint, but {words}"):
            regular_file(place, "a checkpoint")


def test_what_is_read_must_be_a_file_in_utf8(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_bytes("größer\r\n".encode())
    assert read_text(path) == "größer\r\n" and read_bytes(path) == "größer\r\n".encode()
    path.write_bytes(b"gr\xf6\xdfer")
    with pytest.raises(UserError, match=r"a\.txt` must be UTF-8 text, but is not at byte 2; convert it\.$"):
        read_text(path)
    os.mkfifo(tmp_path / "pipe")
    for read in (read_bytes, read_text, read_json):
        with pytest.raises(UserError, match="pipe` must be a list, but is a pipe instead"):
            read(tmp_path / "pipe", "a list")

    def refuse(*arguments):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files.Path, "read_bytes", refuse)
    with pytest.raises(UserError, match=r"a\.txt` must be a list, but cannot be read: Input/output error\.$"):
        read_bytes(path, "a list")


@pytest.mark.parametrize("text", ["{", "", "[" * 100_000, "\ufeff1", "1" * 5000], ids=range(5))
def test_json_that_is_none_is_one_sentence(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_text('{"a": [1]}')
    assert read_json(path) == {"a": [1]}
    path.write_text(text)
    with pytest.raises(UserError, match=r"a\.json` must be a JSON file, but cannot be read as one: .+\.$"):
        read_json(path)


# What Python's splitlines() and universal newlines, or Unicode, take for the end of a line.
BREAKS = ["\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]


def test_a_line_feed_ends_a_line_and_nothing_else_does(tmp_path):
    path = tmp_path / "a.txt"
    lines = [*(f"one{mark}two" for mark in BREAKS), "", "\r\r", "".join(BREAKS) + "end"]
    assert len(BREAKS) == 9 and all(len(line.splitlines()) > 1 for line in lines[:9])
    for last in ("", "\n"):
        path.write_bytes(("\n".join(lines) + last).encode())
        assert text_lines(path) == [*lines[:10], "\r", lines[-1]]  # of two carriage returns, the second is Windows's
    path.write_bytes(b"one\r\ntwo\rthree\r\n\r\nfour")
    assert text_lines(path) == ["one", "two\rthree", "", "four"]
    path.write_bytes(b"")
    assert text_lines(path) == []
    path.write_bytes(b"\n\n")
    assert text_lines(path) == ["", ""]
    path.write_bytes(b"one\r")
    assert text_lines(path) == ["one"]


def test_what_has_no_lines_is_said_in_one_sentence(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"un\n" + 10_000 * b"x" + b"\xff\n")
    with pytest.raises(UserError, match="must be UTF-8 text, but is not at byte 10003"):
        text_lines(path)
    path.write_bytes(b"one\rtwo\r")
    with pytest.raises(UserError, match="must have lines that end in line feeds, but has carriage returns alone"):
        text_lines(path)
    with pytest.raises(UserError, match=r"none\.txt` must be a text file, but there is none\."):
        text_lines(tmp_path / "none.txt")


def test_a_link_in_a_circle_is_no_output(tmp_path):
    os.symlink(tmp_path / "b", tmp_path / "a")
    os.symlink(tmp_path / "a", tmp_path / "b")
    with pytest.raises(UserError, match="`OUT` must be a file that does not exist yet"):
        output_file("OUT", tmp_path / "a", False, IN=tmp_path / "in")
    assert output_file("OUT", tmp_path / "new", False, IN=tmp_path / "in") == tmp_path / "new"


def test_a_folder_to_write_to_is_tried_and_left_as_it_was(tmp_path, monkeypatch):
    check_writable(tmp_path / "new" / "folder")
    (tmp_path / "old").mkdir()
    check_writable(tmp_path / "old")
    assert [path.name for path in tmp_path.rglob("*")] == ["old"]
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "folder"):
        with pytest.raises(UserError, match=r"file.*` must be a folder that can be written to, but is not: .+\.$"):
            check_writable(place)

    def refuse(**arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.tempfile, "TemporaryFile", refuse)
    with pytest.raises(UserError, match=r"but is not: No space left on device\.$"):
        check_writable(tmp_path / "new" / "folder")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "old"]
