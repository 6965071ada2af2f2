"""A file with a checksum says whether it is whole, and torch reads it all the same."""

import hashlib
import struct
import zipfile
from pathlib import Path

import pytest
import torch

from fairseq_mtmoe.checkpoints.checksum import identity, write_checksum
from tests.helpers.checkpoint_files import change, verify, with_checksum, without_checksum
from tests.helpers.refused import refused
from tests.helpers.states import save_all

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


def test_a_file_of_more_than_one_block_is_hashed_whole(tmp_path):
    (path,) = save_all(tmp_path, {"w": torch.zeros(300_000)})
    for offset in (0, 1 << 18, path.stat().st_size - COMMENT - 1):
        assert_damaged(change(path, offset))
        assert verify(change(path, offset))


def test_a_checksum_that_is_not_exactly_ours_is_damage(tmp_path):
    path = with_checksum(tmp_path / "a.pt")
    data = path.read_bytes()
    content, comment, digest = data[:-COMMENT], data[-COMMENT:], data[-64:]
    short = content[:-2] + struct.pack("<H", COMMENT - 1)
    assert digest.upper() != digest
    for wrong in (
        content,  # the comment is lost, and nothing else
        *(data + b"\0", data + comment, b"\0" + data, b"", comment),
        *(data[:-64] + digest.upper(), data[:-64] + b"0" * 64, content + comment.replace(b"mtmoe", b"other")),
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


def test_files_from_before_archives_pass_unchecked(tmp_path):
    for protocol in (2, 4):
        torch.save({"n": 3}, tmp_path / "old.pt", _use_new_zipfile_serialization=False, pickle_protocol=protocol)
        assert verify(tmp_path / "old.pt") is None
