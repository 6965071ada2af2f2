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
    assert verify(path) == verify(str(path)) == digest == data[-64:].decode()


def test_every_file_has_an_identity(tmp_path):
    path, other = with_checksum(tmp_path / "a.pt"), without_checksum(tmp_path / "b.pt")
    assert identity(path) == verify(path)
    assert identity(other) == hashlib.sha256(other.read_bytes()).hexdigest()
    (tmp_path / "empty.pt").write_bytes(b"")
    assert identity(tmp_path / "empty.pt") == hashlib.sha256().hexdigest()


def test_stock_torch_and_zip_read_a_file_with_a_checksum(tmp_path):
    path = with_checksum(tmp_path / "a.pt")
    for mmap in (False, True):
        assert torch.equal(torch.load(path, mmap=mmap)["w"], torch.arange(100.0))
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None and archive.comment.startswith(b"mtmoe sha256:")


def test_a_file_of_more_than_one_block_is_hashed_whole(tmp_path):
    path = tmp_path / "a.pt"
    torch.save({"w": torch.zeros(300_000)}, path)
    write_checksum(path)
    for offset in (0, 1 << 18, path.stat().st_size - COMMENT - 1):
        assert_damaged(change(path, offset))
        assert verify(change(path, offset))


def test_a_checksum_that_is_not_exactly_ours_is_damage(tmp_path):
    path = with_checksum(tmp_path / "a.pt")
    data = path.read_bytes()
    upper = data[-64:].upper()
    short = data[: -COMMENT - 2] + struct.pack("<H", COMMENT - 1)
    assert upper != data[-64:]
    for wrong in (
        data[:-COMMENT],  # the comment is lost, and nothing else
        data + b"\0",
        data + data[-COMMENT:],
        data[:-64] + upper,
        data[:-64] + b"0" * 64,
        data[:-COMMENT] + data[-COMMENT:].replace(b"mtmoe", b"other"),
        short + b"mtmoe sha256:" + hashlib.sha256(short).hexdigest().encode(),
        b"\0" + data,
        b"",
        data[-COMMENT:],
    ):
        path.write_bytes(wrong)
        assert_damaged(path)


def directory_entry(path: Path, name: str) -> int:
    """Where the archive's directory describes a record."""
    with zipfile.ZipFile(path) as archive:
        start = archive.start_dir
    data = path.read_bytes()
    return data.rindex(b"PK\x01\x02", start, data.index(name.encode(), start))


def test_an_archive_without_checksum_that_two_readers_read_apart_is_damaged(tmp_path):
    path = without_checksum(tmp_path / "a.pt")
    entry = directory_entry(path, "/data/0")
    change(path, entry + 38, 0x10)  # a folder, for torch: it gives memory that nothing was read into
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    assert_damaged(path)
    change(path, entry + 38, 0x10)
    change(path, entry + 10, 8)  # compressed: stored bytes are then misread
    assert_damaged(path)
    change(path, entry + 10, 8)
    assert_damaged(change(path, path.stat().st_size - 50))  # Python looks for records before the file's start
    change(path, path.stat().st_size - 50)
    assert verify(path) is None
    data = path.read_bytes()
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
