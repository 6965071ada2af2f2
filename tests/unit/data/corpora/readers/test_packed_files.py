import bz2
import gzip
import io
import lzma
import os
import tarfile
import zipfile

import pytest
from backports import zstd

from fairseq_mtmoe.errors import UserError
from tests.helpers.reading import all_lines, corpus, found_in, places

PACKERS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd.compress}
SOURCE = b"".join(b"sentence %d is here\n" % number for number in range(300))
TARGET = b"".join(b"Satz %d ist da\n" % number for number in range(300))


def tar_of(members, mode="w", **settings):
    """An archive of these names and contents; None is a folder, text is a link's goal."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode, **settings) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                info.type = tarfile.DIRTYPE if content is None else tarfile.SYMTYPE
                info.linkname = content or ""
                archive.addfile(info)
    return file.getvalue()


def zip_of(members, compression=zipfile.ZIP_DEFLATED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


MEMBERS = [("data/a.en", SOURCE), ("data/read.me", b"no corpus"), ("data/a.de", TARGET)]


@pytest.mark.parametrize("packer", PACKERS)
def test_packed_files_whatever_they_are_called_and_packed_twice(tmp_path, packer):
    pack = PACKERS[packer]
    (tmp_path / "b.gz").write_bytes(TARGET)
    for content in (pack(SOURCE), gzip.compress(pack(SOURCE[:1000]) + pack(SOURCE[1000:]))):
        (tmp_path / "a.txt").write_bytes(content)
        pairs, bad = found_in(corpus(tmp_path / "a.txt", tmp_path / "b.gz"))
        assert len(pairs) == 300 and pairs[299] == (300, "sentence 299 is here", "Satz 299 ist da") and not bad


@pytest.mark.parametrize("packer", PACKERS)
def test_a_file_cut_anywhere_gives_what_is_before_and_says_the_rest(tmp_path, packer):
    noise = b"".join(os.urandom(20).hex().encode() + b"\n" for _ in range(300))  # packs badly: many blocks
    whole = PACKERS[packer](noise)
    (tmp_path / "b").write_bytes(TARGET)
    for kept in (0.0, 0.6, 0.999):
        (tmp_path / "a").write_bytes(whole[: max(int(len(whole) * kept), 7)])
        pairs, bad = found_in(corpus(tmp_path / "a", tmp_path / "b"))
        assert places(bad) == [("a", len(pairs) + 1, "truncated", 300 - len(pairs))]
        lines = noise.decode().split("\n")
        assert [source for _, source, _ in pairs] == lines[: len(pairs)]


@pytest.mark.parametrize("packer", PACKERS)
def test_a_damaged_file_never_gives_all_its_lines_in_silence(tmp_path, packer):
    checked = {zstd.CompressionParameter.checksum_flag: 1}  # the others always have a sum
    whole = bytearray(zstd.compress(SOURCE, options=checked) if packer == "zst" else PACKERS[packer](SOURCE))
    whole[len(whole) // 2] ^= 0xFF
    (tmp_path / "a").write_bytes(bytes(whole))
    (tmp_path / "b").write_bytes(TARGET)
    pairs, bad = found_in(corpus(tmp_path / "a", tmp_path / "b"))
    assert bad and all_lines(pairs, bad) >= 300


ARCHIVES = {
    "tar": lambda: tar_of(MEMBERS),
    "tar.gz": lambda: tar_of(MEMBERS, "w:gz"),
    "tar.zst": lambda: zstd.compress(tar_of(MEMBERS)),
    "pax": lambda: tar_of([("x/" * 200 + "long", b""), *MEMBERS], format=tarfile.PAX_FORMAT),
    "gnu": lambda: tar_of([("x/" * 200 + "long", b""), *MEMBERS], format=tarfile.GNU_FORMAT),
    "zip": lambda: zip_of(MEMBERS),
    "zip of bz2": lambda: zip_of(MEMBERS, zipfile.ZIP_BZIP2),
    "zip of xz": lambda: zip_of(MEMBERS, zipfile.ZIP_LZMA),
    "zip stored": lambda: zip_of(MEMBERS, zipfile.ZIP_STORED),
}


@pytest.mark.parametrize("archive", ARCHIVES)
def test_members_of_archives(tmp_path, archive):
    path = tmp_path / f"odd!name.{archive}"
    path.write_bytes(ARCHIVES[archive]())
    for members in (("data/a.en", "data/a.de"), ("./data/a.en", "*/a.de")):
        pairs, bad = found_in(corpus(*(f"{path}!{member}" for member in members)))
        assert len(pairs) == 300 and not bad


def test_a_member_that_is_packed_itself(tmp_path):
    (tmp_path / "a.tar").write_bytes(tar_of([("a.en.gz", gzip.compress(SOURCE)), ("a.de.xz", lzma.compress(TARGET))]))
    assert len(found_in(corpus(tmp_path / "a.tar!a.en.gz", tmp_path / "a.tar!*.xz"))[0]) == 300


@pytest.mark.parametrize("archive", ["tar.gz", "tar", "zip"])
def test_wrong_members_end_in_a_sentence(tmp_path, archive):
    path = tmp_path / "archive"
    path.write_bytes(ARCHIVES[archive]())
    for member, sentence in [
        ("a.en", "there is no `a.en`, only data/a.en, data/read.me, data/a.de"),
        ("*.fr", "there is no `\\*.fr`"),
        ("*/a.*", "must be one member of the archive, but is both `data/a.en` and `data/a.de`"),
    ]:
        with pytest.raises(UserError, match=sentence):
            found_in(corpus(f"{path}!{member}", f"{path}!data/a.de"))
    with pytest.raises(UserError, match="given with one of its members, such as `archive!path/inside`"):
        found_in(corpus(path, path))
    (tmp_path / "text").write_bytes(SOURCE)
    with pytest.raises(UserError, match="must be a member of a tar or zip archive, but what is before the `!` is none"):
        found_in(corpus(f"{tmp_path / 'text'}!a", path))


def test_names_that_lead_out_of_an_archive_are_names_and_nothing_else(tmp_path):
    members = [("../../evil.en", SOURCE), ("in/evil.de", TARGET)]
    for content in (tar_of(members), zip_of(members)):
        folder = tmp_path / f"deep/er/{len(content)}"
        folder.mkdir(parents=True)
        (folder / "archive").write_bytes(content)
        before = sorted(tmp_path.rglob("*"))
        names = [f"{folder}/archive!{name}" for name, _ in members]
        assert len(found_in(corpus(*names))[0]) == 300
        assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(UserError, match=r"there is no `\.\./\.\./\.\./a`"):
        found_in(corpus(f"{folder}/archive!../../../a", names[1]))


@pytest.mark.parametrize("goal", ["/etc/passwd", "../a", None])
def test_links_that_lead_out_of_an_archive_and_folders_are_not_followed(tmp_path, goal):
    (tmp_path / "a.tar").write_bytes(tar_of([("a", goal)]))
    (tmp_path / "b").write_bytes(TARGET)
    files = corpus(tmp_path / "a.tar!a", tmp_path / "b")
    if goal is None:
        with pytest.raises(UserError, match="there is no `a`"):
            found_in(files)
    else:
        pairs, [bad] = found_in(files)
        assert not pairs and bad.reason == "damaged" and "not found" in bad.excerpt


@pytest.mark.parametrize("archive", ["tar", "tar.gz", "zip"])
def test_a_cut_archive_is_said_at_every_place(tmp_path, archive):
    whole = ARCHIVES[archive]()
    path = tmp_path / "archive"
    (tmp_path / "b").write_bytes(TARGET)
    ends = {"zip": b"PK\x01\x02", "tar": b"Satz 299"}
    data_end = whole.rfind(ends[archive]) if archive in ends else len(whole)
    for size in [*range(600, data_end, max(data_end // 20, 1))]:
        path.write_bytes(whole[:size])
        try:
            pairs, bad = found_in(corpus(f"{path}!data/a.en", tmp_path / "b"))
        except UserError as error:
            assert "there is no" in str(error)
            continue
        assert all_lines(pairs, bad) == 300 and {line.reason for line in bad} <= {"truncated", "damaged"}
        assert bad or archive == "tar"
