"""Result files are complete or absent."""

import os
import stat
import subprocess
import sys

import pytest

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io import files
from tests.helpers.refused import refused


def refuse(*arguments, **options):
    raise OSError(30, "Read-only file system")


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError), files.replacing(path) as partial:
        partial.write_text("half")
        assert partial.suffix == ".txt"
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for write in (files.write_text, lambda path, _: files.new_folder(path).__enter__()):
        with refused("file/a.txt"):
            write(tmp_path / "file" / "a.txt", "")


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_disk_that_is_full_or_read_only_at_the_end_keeps_the_old_file(tmp_path, monkeypatch, step):
    path = tmp_path / "a.txt"
    path.write_text("old")
    monkeypatch.setattr(os, step, refuse)
    with pytest.raises(UserError, match=r"a\.txt` cannot be written: Read-only file system; what was there before is"):
        files.write_text(path, "new")
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
    files.write_text(tmp_path / "new" / "newer" / "a.txt", "größer\n")
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
    assert list((tmp_path / "new").iterdir()) == []
    with files.new_folder(target) as partial:
        (partial / "file").write_text("whole")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.b"] and (target / "file").read_text() == "whole"
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


def test_what_may_still_be_written_is_left_alone(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    dead = kill_while_writing(path)
    number = dead.name.split(".")[-2]
    running = dead.with_name(dead.name.replace(number, str(os.getppid())))
    of_another_host = dead.with_name(dead.name.replace(dead.name.split(".")[-3], "elsewhere"))
    not_ours = dead.with_name(dead.name + ".bak")
    for file in (running, of_another_host, not_ours):
        file.write_text("half")
    files.write_text(path, "new")
    assert set(tmp_path.iterdir()) == {path, running, of_another_host, not_ours}
    monkeypatch.setattr(os, "kill", lambda *_: (_ for _ in ()).throw(PermissionError))  # a process of another user
    files.write_text(path, "newer")
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
    assert files.regular_file(file) == file and files.regular_file(link) == link
    for place, words in (
        (folder, "is a folder"), (pipe, "is a pipe"), (circle, "is a link that leads in a circle"),
        (dangling, "is a link that leads nowhere"), ("none", "there is none"), ("a\0b", "is no file name"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=f"` must be a checkpoint, but {words}"):
            files.regular_file(place, "a checkpoint")


def test_what_is_read_must_be_a_file_in_utf8(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_bytes("größer\r\n".encode())
    assert files.read_text(path) == "größer\r\n" and files.read_bytes(path) == "größer\r\n".encode()
    path.write_bytes(b"gr\xf6\xdfer")
    with pytest.raises(UserError, match=r"a\.txt` must be UTF-8 text, but is not at byte 2"):
        files.read_text(path)
    monkeypatch.setattr(files.Path, "read_bytes", refuse)
    for read in (files.read_bytes, files.read_text, files.read_json):
        with refused("a.txt"):
            read(path, "a list")


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "1" * 5000], ids=range(3))
def test_json_that_is_none_is_one_sentence(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_text('{"a": [1]}')
    assert files.read_json(path) == {"a": [1]}
    path.write_text(text)
    with refused("a.json"):
        files.read_json(path)


# What Python's splitlines() and universal newlines, or Unicode, take for the end of a line.
BREAKS = ["\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]


def test_a_line_feed_ends_a_line_and_nothing_else_does(tmp_path):
    path = tmp_path / "a.txt"
    lines = [*(f"one{mark}two" for mark in BREAKS), "", "\r\r", "".join(BREAKS) + "end"]
    assert len(BREAKS) == 9 and all(len(line.splitlines()) > 1 for line in lines[:9])
    for last in ("", "\n"):
        path.write_bytes(("\n".join(lines) + last).encode())
        assert files.text_lines(path) == [
            *lines[:10],
            "\r",
            lines[-1],
        ]  # of two carriage returns, the second is Windows's
    path.write_bytes(b"one\r\ntwo\rthree\r\n\r\nfour")
    assert files.text_lines(path) == ["one", "two\rthree", "", "four"]
    path.write_bytes(b"")
    assert files.text_lines(path) == []
    path.write_bytes(b"\n\n")
    assert files.text_lines(path) == ["", ""]
    path.write_bytes(b"one\r")
    assert files.text_lines(path) == ["one"]


def test_what_has_no_lines_is_said_in_one_sentence(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"un\n" + 10_000 * b"x" + b"\xff\n")
    with pytest.raises(UserError, match="byte 10003"):
        files.text_lines(path)
    path.write_bytes(b"one\rtwo\r")
    with refused("a.txt"):
        files.text_lines(path)


def test_a_link_in_a_circle_is_no_output(tmp_path):
    os.symlink(tmp_path / "b", tmp_path / "a")
    os.symlink(tmp_path / "a", tmp_path / "b")
    with refused("OUT"):
        files.output_file("OUT", tmp_path / "a", False, IN=tmp_path / "in")
    assert files.output_file("OUT", tmp_path / "new", False, IN=tmp_path / "in") == tmp_path / "new"


def test_a_folder_to_write_to_is_tried_and_left_as_it_was(tmp_path, monkeypatch):
    files.check_writable(tmp_path / "new" / "folder")
    (tmp_path / "old").mkdir()
    files.check_writable(tmp_path / "old")
    assert [path.name for path in tmp_path.rglob("*")] == ["old"]
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "folder"):
        with refused(str(place)):
            files.check_writable(place)
    monkeypatch.setattr(files.tempfile, "TemporaryFile", refuse)
    with refused("new/folder"):
        files.check_writable(tmp_path / "new" / "folder")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "old"]
