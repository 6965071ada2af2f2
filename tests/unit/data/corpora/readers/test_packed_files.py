import bz2
import gzip
import io
import lzma
import os
import re
import tarfile
import time
import zipfile

import pytest
from backports import zstd
from hypothesis import example, given
from hypothesis import strategies as st

from fairseq_mtmoe.data.corpora.readers import archives, streams
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
def test_packed_files_whatever_they_are_called(tmp_path, packer):
    (tmp_path / "a.txt").write_bytes(PACKERS[packer](SOURCE))
    (tmp_path / "b.gz").write_bytes(TARGET)
    pairs, bad = found_in(corpus(tmp_path / "a.txt", tmp_path / "b.gz"))
    assert len(pairs) == 300 and pairs[299] == (300, "sentence 299 is here", "Satz 299 ist da") and not bad


@pytest.mark.parametrize("packer", PACKERS)
def test_packed_twice_and_in_several_parts(tmp_path, packer):
    pack = PACKERS[packer]
    (tmp_path / "a").write_bytes(gzip.compress(pack(SOURCE[:1000]) + pack(SOURCE[1000:])))
    (tmp_path / "b").write_bytes(TARGET)
    assert len(found_in(corpus(tmp_path / "a", tmp_path / "b"))[0]) == 300


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("kept", [0.0, 0.01, 0.3, 0.6, 0.9, 0.999])
def test_a_file_cut_anywhere_gives_what_is_before_and_says_the_rest(tmp_path, packer, kept):
    noise = b"".join(os.urandom(20).hex().encode() + b"\n" for _ in range(300))  # packs badly: many blocks
    whole = PACKERS[packer](noise)
    (tmp_path / "a").write_bytes(whole[: max(int(len(whole) * kept), 7)])
    (tmp_path / "b").write_bytes(TARGET)
    pairs, bad = found_in(corpus(tmp_path / "a", tmp_path / "b"))
    assert places(bad) == [("a", len(pairs) + 1, "truncated", 300 - len(pairs))]
    lines = noise.decode().split("\n")
    assert [source for _, source, _ in pairs] == lines[: len(pairs)]


@pytest.mark.parametrize("packer", PACKERS)
def test_every_cut_of_a_small_file_is_said(tmp_path, packer):
    whole = PACKERS[packer](b"one\ntwo\n")
    (tmp_path / "b").write_bytes(b"eins\nzwei\n")
    for size in range(6, len(whole)):
        (tmp_path / "a").write_bytes(whole[:size])
        pairs, bad = found_in(corpus(tmp_path / "a", tmp_path / "b"))
        assert (bad and all_lines(pairs, bad) == 2) or len(pairs) == 2


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
    path = tmp_path / "odd!name"
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
    members = [("../../evil.en", SOURCE), ("/tmp/evil.de", TARGET)]
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
def test_links_and_folders_in_an_archive_are_not_followed(tmp_path, goal):
    (tmp_path / "a.tar").write_bytes(tar_of([("a", goal)]))
    with pytest.raises(UserError, match="is a link, a folder or a device"):
        found_in(corpus(tmp_path / "a.tar!a", tmp_path / "a.tar!a"))


@pytest.mark.parametrize("archive", ["tar", "tar.gz", "zip"])
def test_a_cut_archive_is_said_at_every_place(tmp_path, archive):
    whole = ARCHIVES[archive]()
    path = tmp_path / "archive"
    (tmp_path / "b").write_bytes(TARGET)
    data_end = whole.rfind(b"PK\x01\x02") if archive == "zip" else len(whole)
    for size in [*range(600, data_end, max(data_end // 40, 1))]:
        path.write_bytes(whole[:size])
        files = corpus(f"{path}!data/a.en", tmp_path / "b")
        try:
            pairs, bad = found_in(files)
        except UserError as error:
            assert "there is no" in str(error)
            continue
        assert all_lines(pairs, bad) == 300
        assert not bad or {line.reason for line in bad} <= {"truncated", "damaged", "unpaired"}
        assert bad or archive != "zip"


def test_an_encrypted_member_ends_in_a_sentence(tmp_path):
    content = bytearray(zip_of([("a", SOURCE)]))
    for place in (content.find(b"PK\x03\x04") + 6, content.find(b"PK\x01\x02") + 8):
        content[place] |= 1
    (tmp_path / "a.zip").write_bytes(bytes(content))
    with pytest.raises(UserError, match="is encrypted"):
        found_in(corpus(tmp_path / "a.zip!a", tmp_path / "a.zip!a"))


@pytest.mark.parametrize(("packer", "free"), [("zst", None), ("gz", 1 << 20), ("bz2", 1 << 20), ("xz", 1 << 20)])
def test_a_bomb_ends_early(tmp_path, monkeypatch, packer, free):
    if free:
        monkeypatch.setattr(streams, "FREE_EXPANSION", free)
    size = (free or 64 << 20) + (64 << 20 if free is None else 11 << 20)
    (tmp_path / "a").write_bytes(PACKERS[packer]((b"a" * 999 + b"\n") * (size // 1000)))
    (tmp_path / "b").write_bytes(b"b\n")
    lost = r"line or unit 2 on it cannot: grows to more than 250 times.* \(after \d+ MiB; (\d+) lines are lost\)"
    with pytest.raises(UserError, match=lost) as found:
        found_in(corpus(tmp_path / "a", tmp_path / "b"))
    assert int(re.search(lost, str(found.value))[1]) < size // 1000 - 1


def test_a_tar_header_that_claims_gigabytes_is_not_believed(tmp_path):
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 7 << 30
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(100_000))
    with pytest.raises(UserError, match="a header of the archive says that it is enormous"):
        found_in(corpus(tmp_path / "a.tar!a", tmp_path / "a.tar!a"))


def test_a_tar_member_that_claims_more_than_there_is(tmp_path):
    info = tarfile.TarInfo("a")
    info.size = 1 << 60
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + SOURCE)
    (tmp_path / "b").write_bytes(TARGET)
    pairs, bad = found_in(corpus(tmp_path / "a.tar!a", tmp_path / "b"))
    assert len(pairs) == 300 and places(bad) == [("a.tar!a", 301, "truncated", 0)]
    assert found_in(corpus(tmp_path / "a.tar!z", tmp_path / "b"))[1][0].reason == "truncated"


@given(st.text("ab/.\n", max_size=12), st.text("ab/.*", max_size=8))
@example("./", "")
@example("./a/b", "a*")
@example("a", "./*")
@example("././a", "./a")
def test_what_a_pattern_means(name, pattern):
    """A leading `./` of either means nothing: `tar` writes it before names where it packs a folder."""
    form = re.escape(pattern.removeprefix("./")).replace(r"\*", ".*")
    assert archives.is_like(name, pattern) == (re.fullmatch(form, name.removeprefix("./"), re.DOTALL) is not None)


def test_no_pattern_takes_long_and_no_name_is_shown_whole(tmp_path):
    started = time.monotonic()
    assert not archives.is_like("a" * 50_000, "a*" * 200 + "b")
    assert time.monotonic() - started < 1
    (tmp_path / "a.tar").write_bytes(tar_of([("n" * 50_000, b"x"), ("m" * 50_000, b"x")]))
    for member in ("*", "none"):
        with pytest.raises(UserError) as error:
            found_in(corpus(tmp_path / f"a.tar!{member}"))
        assert len(str(error.value)) < 600
