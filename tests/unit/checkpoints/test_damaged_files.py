"""A file with a checksum says whether it is whole; of damaged ones none is accepted, executed or without a sentence."""

import encodings.cp437
import encodings.raw_unicode_escape  # noqa: F401 (which damaged files may ask for, and which are no attack)
import hashlib
import random
import struct
import sys
import threading
import zipfile
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.checksum import identity, write_checksum
from fairseq_mtmoe.checkpoints.rewriting import copy_with_experts
from fairseq_mtmoe.core.errors import UserError
from tests.helpers.checkpoint_files import change, verify, without_checksum
from tests.helpers.refused import refused
from tests.helpers.states import assert_same, save_all

COMMENT = 77


def assert_damaged(path: Path) -> None:
    with refused(path.name):
        verify(path)


def test_the_comment_is_the_digest_of_all_before_it(tmp_path):
    path = without_checksum(tmp_path / "a.pt")
    before = path.read_bytes()
    digest = write_checksum(path)
    data = path.read_bytes()
    assert data[:-COMMENT] == before[:-2] + struct.pack("<H", COMMENT)
    assert data[-COMMENT:] == b"mtmoe sha256:" + hashlib.sha256(data[:-COMMENT]).hexdigest().encode()
    assert verify(path) == verify(str(path)) == identity(path) == digest == data[-64:].decode()
    for mmap in (False, True):  # stock torch and zip read it
        assert torch.equal(torch.load(path, mmap=mmap)["w"], torch.arange(100.0))
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None and archive.comment == data[-COMMENT:]
    for content in (before, b""):
        path.write_bytes(content)
        assert identity(path) == hashlib.sha256(content).hexdigest()


def test_content_or_a_checksum_that_is_not_exactly_ours_is_damage(tmp_path):
    (path,) = save_all(tmp_path, {"w": torch.zeros(300_000)})  # of more than one block
    data = path.read_bytes()
    for offset in (0, 1 << 18, len(data) - COMMENT - 1):
        assert_damaged(change(path, offset))
        assert verify(change(path, offset))
    content, comment, digest = data[:-COMMENT], data[-COMMENT:], data[-64:]
    short = content[:-2] + struct.pack("<H", COMMENT - 1)
    for wrong in (
        content,  # the comment is lost, and nothing else
        *(data + b"\0", data + comment, b"\0" + data, b"", comment),
        *(data[:-64] + digest.upper(), content + comment.replace(b"mtmoe", b"other")),
        short + b"mtmoe sha256:" + hashlib.sha256(short).hexdigest().encode(),
    ):
        path.write_bytes(wrong)
        assert_damaged(path)


def test_an_archive_without_checksum_that_two_readers_read_apart_is_damaged(tmp_path):
    path = without_checksum(tmp_path / "a.pt")
    data = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        entry = data.rindex(b"PK\x01\x02", archive.start_dir, data.index(b"/data/0", archive.start_dir))
    for offset, bits in (
        (entry + 38, 0x10),  # a folder, for torch: it gives memory that nothing was read into
        (entry + 10, 8),  # compressed: stored bytes are then misread
        (len(data) - 50, 1),  # Python looks for records before the file's start
    ):
        assert_damaged(change(path, offset, bits))
        if offset == entry + 38:
            with zipfile.ZipFile(path) as archive:
                assert archive.testzip() is None
        assert verify(change(path, offset, bits)) is None
    for wrong in (b"\0" + data, data + b"\0", data[-22:]):
        path.write_bytes(wrong)
        assert_damaged(path)
    path.write_bytes(data)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning):
        archive.writestr(next(name for name in archive.namelist() if name.endswith("data.pkl")), b"other")
    assert_damaged(path)


FLIPS = 60
EXECUTING = {"exec", "pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen"}
WAYS_IN = file_io.load, checkpoint_utils.load_checkpoint_to_cpu, lambda path: copy_with_experts(path, f"{path}.copy")
EXECUTED = []  # by Python in `outcome`: an audit hook cannot be taken away
WATCHED = threading.Event()
sys.addaudithook(lambda event, _: EXECUTED.append(event) if WATCHED.is_set() and event in EXECUTING else None)


@pytest.fixture
def state(checkpoint):
    return {**checkpoint[0], "extra_state": {"train_iterator": {"epoch": 1}, "val_loss": 2.5, "gate_rate": {}}}


def draws(path, seed):
    """Damaged twins of a file: a bit flipped anywhere, or in the archive's directory and what follows it; truncated."""
    data, draw = path.read_bytes(), random.Random(seed)
    with zipfile.ZipFile(path) as archive:
        starts = [0] * FLIPS + [archive.start_dir] * FLIPS
    damaged = []
    for start in starts:
        flipped = bytearray(data)
        flipped[draw.randrange(start, len(data))] ^= 1 << draw.randrange(8)
        damaged.append(bytes(flipped))
    lengths = [*range(5), *(len(data) - size for size in (1, 2, 22, 64, COMMENT, COMMENT + 2, COMMENT + 22))]
    return damaged + [data[:length] for length in (*lengths, *(draw.randrange(len(data)) for _ in range(20)))]


def outcome(way_in, path):
    """What comes in, or the one sentence that refuses it."""
    WATCHED.set()
    try:
        return way_in(str(path))
    except UserError as error:
        assert str(error).startswith(f"`{path}` ") and "\n" not in str(error)
        return str(error)
    finally:
        WATCHED.clear()


def write_and_load(state, path, save):
    save(state, str(path))
    for way_in in WAYS_IN:  # once, so that what loading imports is there
        way_in(str(path))
    assert_same(file_io.load(str(path)), state)
    assert verify(f"{path}.copy") == verify(path)


def test_no_damage_to_a_file_with_checksum_is_accepted(state, tmp_path):
    path, older = tmp_path / "checkpoint_last.pt", tmp_path / "checkpoint1.pt"
    write_and_load(state, path, file_io.save_anywhere)
    file_io.save({"n": 1}, str(older))
    for number, data in enumerate(draws(path, seed=1)):
        path.write_bytes(data)
        sentence = outcome(WAYS_IN[number % len(WAYS_IN)], path)
        assert str(sentence).endswith(f"use an older one: the newest good one beside it is `{older}`.")
    assert not EXECUTED and set(tmp_path.iterdir()) == {path, older, tmp_path / f"{path.name}.copy"}
    assert_same(file_io.load(f"{path}.copy"), state)  # no damaged copy was made


def test_damage_to_a_file_without_checksum_is_refused_or_without_effect(state, tmp_path):
    path = tmp_path / "checkpoint_last.pt"
    write_and_load(state, path, torch.save)
    harmless = 0
    for data in draws(path, seed=2):
        path.write_bytes(data)
        loaded = outcome(file_io.load, path)
        if not isinstance(loaded, str):
            assert_same(loaded, state)  # a header's or padding's bit
            harmless += 1
    assert 0 < harmless < FLIPS and not EXECUTED
