import bz2
import gzip
import io
import lzma
import os
import tarfile
import zipfile

import pytest
from backports import zstd

from fairseq_mtmoe.core.errors import UserError
from tests.helpers.reading import corpus, found_in, written
from tests.helpers.refused import refused

PACKERS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd.compress}
SOURCE = b"".join(b"sentence %d is here\n" % number for number in range(300))
TARGET = b"".join(b"Satz %d ist da\n" % number for number in range(300))


def tar_of(members, mode="w"):
    """An archive of these names and contents; None is a folder, text is a link's goal."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
            else:
                info.type, info.linkname = (tarfile.SYMTYPE, content) if content else (tarfile.DIRTYPE, "")
            archive.addfile(info, io.BytesIO(content) if info.size else None)
    return file.getvalue()


def zip_of(members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


MEMBERS = [("data/a.en", SOURCE), ("data/read.me", b"no corpus"), ("data/a.de", TARGET)]


@pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS)
def test_packed_files_whatever_they_are_called_and_cut_anywhere(tmp_path, pack):
    (tmp_path / "b.gz").write_bytes(TARGET)
    for content in (pack(SOURCE), pack(SOURCE[:1000]) + pack(SOURCE[1000:])):
        [path] = written(tmp_path, content).paths
        pairs, bad = found_in(corpus(path, tmp_path / "b.gz"))
        assert len(pairs) == 300 and pairs[299] == (300, "sentence 299 is here", "Satz 299 ist da") and not bad
    noise = b"".join(os.urandom(20).hex().encode() + b"\n" for _ in range(300))  # packs badly: many blocks
    whole = pack(noise)
    broken = whole[:-1] + bytes([whole[-1] ^ 0xFF])
    for content in (whole[:7], whole[: len(whole) // 2], whole[:-2], broken):
        with refused("a"):
            found_in(written(tmp_path, content, TARGET))


ARCHIVES = {
    "tar": lambda: tar_of(MEMBERS),
    "tar.gz": lambda: tar_of(MEMBERS, "w:gz"),
    "tar.zst": lambda: zstd.compress(tar_of(MEMBERS)),
    "zip": lambda: zip_of(MEMBERS),
    "tar of packed files": lambda: tar_of([("data/a.en", gzip.compress(SOURCE)), ("data/a.de", lzma.compress(TARGET))]),
}


@pytest.mark.parametrize("archive", ARCHIVES)
def test_members_of_archives(tmp_path, archive):
    path = tmp_path / f"odd!name.{archive}"
    path.write_bytes(ARCHIVES[archive]())
    for members in (("data/a.en", "data/a.de"), ("./data/a.en", "*/a.de")):
        pairs, bad = found_in(corpus(*(f"{path}!{member}" for member in members)))
        assert len(pairs) == 300 and not bad


def test_wrong_members_end_in_a_sentence(tmp_path):
    path = tmp_path / "archive"
    path.write_bytes(ARCHIVES["tar.gz"]())
    (tmp_path / "text").write_bytes(SOURCE)
    (tmp_path / "links").write_bytes(tar_of([("link", "/etc/passwd"), ("folder", None)]))
    for member in ("archive!a.en", "archive!*.fr", "archive!*/a.*", "text!a", "links!link", "links!folder"):
        with refused(member):
            found_in(corpus(tmp_path / member, f"{path}!data/a.de"))
    with refused("the corpus' file"):
        found_in(corpus(path, path))


def test_names_that_lead_out_of_an_archive_are_names_and_nothing_else(tmp_path):
    members = [("../../evil.en", SOURCE), ("in/evil.de", TARGET)]
    folder = tmp_path / "deep" / "er"
    folder.mkdir(parents=True)
    for content in (tar_of(members), zip_of(members)):
        [path] = written(folder, content).paths
        before = sorted(tmp_path.rglob("*"))
        assert len(found_in(corpus(*(f"{path}!{name}" for name, _ in members)))[0]) == 300
        assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("archive", "end"), [("tar", b"Satz 299"), ("tar.gz", None), ("zip", b"PK\x01\x02")])
def test_a_cut_archive_is_refused(archive, end, tmp_path):
    whole = ARCHIVES[archive]()
    last = whole.rfind(end) if end else len(whole)
    for size in range(600, last, last // 10):
        path, target = written(tmp_path, whole[:size], TARGET).paths
        try:
            pairs, bad = found_in(corpus(f"{path}!data/a.en", target))
        except UserError as error:
            assert error.names
        else:  # the rest of a tar that was left to read
            assert archive == "tar" and len(pairs) == 300 and not bad
