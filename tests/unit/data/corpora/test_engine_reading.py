"""Workers read raw files themselves: the same data however these are packed and cut."""

import gzip
import tarfile

from fairseq_mtmoe.data.corpora import raw_files
from fairseq_mtmoe.data.corpora.raw_files import Digests
from fairseq_mtmoe.io.digest import digest_of_file
from tests.helpers.raw_corpora import Counting, change, digests, entries, prepare_small


def with_files(raw, **files):
    """Let the recipe's corpora have other files."""
    corpora = entries(raw)
    for corpus in corpora:
        corpus["files"] = files.get(corpus["name"].replace("-", "_"), corpus["files"])
    change(raw / "recipe.yaml", corpora=corpora)


def ids(data):
    return {name: sha for name, sha in digests(data).items() if name.endswith((".bin", ".idx"))}


def test_packed_corpora_are_unpacked_once_and_make_the_same_ids(raw, tmp_path):
    prepare_small(raw, tmp_path / "plain")
    for lang in ("en", "de"):
        (raw / f"a.{lang}.gz").write_bytes(gzip.compress((raw / f"train-de-0.{lang}").read_bytes()))
    members = ["train-de-1.en", "train-de-1.de", "train-et-0.en", "train-et-0.et"]
    with tarfile.open(raw / "b.tgz", "w:gz") as archive:
        for name in members:
            archive.add(raw / name, f"v7/{name}")
    inside = [f"b.tgz!*/{name}" for name in members]
    with_files(raw, train_de_0=["a.en.gz", "a.de.gz"], train_de_1=inside[:2], train_et_0=inside[2:])
    workers = Counting()
    prepare_small(raw, tmp_path / "packed", workers)
    assert workers.done["unpack"] == 3 and ids(tmp_path / "packed") == ids(tmp_path / "plain")
    assert not (tmp_path / ".packed.work" / "cleaned" / "unpacked").exists()


def test_bad_lines_of_all_parts_are_counted(raw, tmp_path):
    lines = (raw / "train-de-0.en").read_text(encoding="utf-8").splitlines()
    lines[3] = lines[50] = lines[51] = lines[80] = ""  # of several parts
    (raw / "train-de-0.en").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    report = prepare_small(raw, tmp_path / "data")
    assert report["corpora"]["train-de-0"]["bad"] == {"empty": 4}
    places = [place for place, _ in report["corpora"]["train-de-0"]["bad_samples"]["empty"]]
    assert places == [f"train-de-0.en:{line}" for line in (4, 51, 52, 81)]


def test_large_files_are_hashed_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(raw_files, "MEGABYTE", 100)
    for name, size in (("a", 200), ("b", 400), ("c", 600)):
        (tmp_path / name).write_bytes(bytes(size))
    paths = [tmp_path / name for name in ("a", "b!inside", "c")]
    Digests(tmp_path / "known.json").learn(paths)
    assert "Hashing: 12 of 12 MB" in capsys.readouterr().err
    first, second, third = (digest_of_file(tmp_path / name) for name in "abc")
    expected = [first, f"{second}!inside", third]
    monkeypatch.setattr(raw_files, "digest_of_file", None)  # all is known
    assert Digests(tmp_path / "known.json").of(paths) == expected
