"""Workers read raw files themselves: the same data however these are packed, and wherever a run was stopped."""

import gzip
import pickle
import shutil
import tarfile

import pytest

from fairseq_mtmoe.data.corpora import raw_files
from fairseq_mtmoe.data.corpora.data_dir import file_hash
from fairseq_mtmoe.data.corpora.engine import jobs as jobs_module
from fairseq_mtmoe.data.corpora.engine import reading
from fairseq_mtmoe.data.corpora.raw_files import Digests
from tests.helpers.raw_corpora import Counting, change, digests, entries, prepare_small, sentences


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
    assert workers.done["_unpack"] == 3 and ids(tmp_path / "packed") == ids(tmp_path / "plain")
    assert not list(tmp_path.glob(".packed.work/unpacked-*"))


def test_corpora_of_the_same_content_are_unpacked_and_read_once(raw, tmp_path):
    with tarfile.open(raw / "a.tgz", "w:gz") as archive:
        for lang in ("en", "de"):
            archive.add(raw / f"train-de-0.{lang}", f"v7/{lang}")
    shutil.copyfile(raw / "a.tgz", raw / "b.tgz")
    one, other = ([f"{name}.tgz!v7/{lang}" for lang in ("en", "de")] for name in "ab")
    with_files(raw, train_de_0=one, train_de_1=other)
    workers = Counting()
    corpora = prepare_small(raw, tmp_path / "data", workers)["corpora"]
    assert workers.done["_unpack"] == 1 and workers.done["clean_part"] == 2 + 5 + 3
    assert corpora["train-de-0"]["read"] == corpora["train-de-1"]["read"] == 94 and corpora["train-de-1"]["kept"] == 0
    assert not list(tmp_path.glob(".data.work/unpacked-*"))


class Posting(Counting):
    """Workers that say how many bytes go to them and come back."""

    bytes = 0

    def map_blocks(self, jobs):
        for job in jobs:
            result = pickle.loads(pickle.dumps(job))()
            if job.func in (jobs_module.cut, jobs_module.clean_part):
                self.bytes += len(pickle.dumps(job)) + len(pickle.dumps(result))
            yield result


def test_no_text_goes_through_the_main_process(raw, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "BLOCK", 50_000)
    lines = [f"{line} {'word ' * 40}{number}" for number, line in enumerate(sentences("long", 2000))]
    for name in ("train-de-0.en", "train-de-0.de"):
        (raw / name).write_text("".join(f"{line} {name[-2:]}\n" for line in lines), encoding="utf-8")
    workers = Posting()
    prepare_small(raw, tmp_path / "data", workers)
    assert 0 < workers.bytes < 20_000 < sum(path.stat().st_size for path in raw.glob("train*")) / 20


def test_a_corpus_in_one_piece_goes_on_after_the_blocks_that_are_there(raw, tmp_path, monkeypatch):
    """Such as a translation memory, which has to be read as a whole."""
    prepare_small(raw, tmp_path / "plain")
    sides = [(raw / f"train-de-0.{lang}").read_text(encoding="utf-8").splitlines() for lang in ("en", "de")]
    unit = '<tu><tuv xml:lang="en"><seg>{}</seg></tuv><tuv xml:lang="de"><seg>{}</seg></tuv></tu>'
    units = "".join(map(unit.format, *sides))
    (raw / "a.tmx").write_text(f'<tmx version="1.4"><body>{units}</body></tmx>', encoding="utf-8")
    with_files(raw, train_de_0=["a.tmx"])
    prepare_small(raw, tmp_path / "data")
    assert ids(tmp_path / "data") == ids(tmp_path / "plain")
    made, clean = [], jobs_module.clean_block

    def clean_or_stop(block, job, number, bad):
        if len(made) == allowed:
            raise KeyboardInterrupt
        made.append((job.stage, number))
        clean(block, job, number, bad)

    monkeypatch.setattr(jobs_module, "clean_block", clean_or_stop)
    for allowed in (3, 6, 9, 100):  # a test set, and then three of the five blocks of the memory
        try:
            prepare_small(raw, tmp_path / "stopped")
        except KeyboardInterrupt:
            assert len(made) == allowed < 100
    assert len(made) == len(set(made)) == 2 + 5 + 4 + 3 and digests(tmp_path / "stopped") == digests(tmp_path / "data")


def test_what_is_bad_in_a_part_is_known_after_a_stop(raw, tmp_path):
    lines = (raw / "train-de-0.en").read_text(encoding="utf-8").splitlines()
    lines[3] = lines[50] = lines[51] = lines[80] = ""  # of several parts
    (raw / "train-de-0.en").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    report = prepare_small(raw, tmp_path / "data")
    assert report["corpora"]["train-de-0"]["bad"] == {"empty": 4}
    assert [sample[1] for sample in report["corpora"]["train-de-0"]["bad_samples"]] == [4, 51, 52, 81]
    for stop_after in (4, 6):
        with pytest.raises(KeyboardInterrupt):
            prepare_small(raw, tmp_path / "stopped", Counting(stop_after))
    prepare_small(raw, tmp_path / "stopped")
    assert digests(tmp_path / "stopped") == digests(tmp_path / "data")


def test_large_files_are_hashed_once(tmp_path, monkeypatch):
    monkeypatch.setattr(raw_files, "MEGABYTE", 100)
    for name, size in (("a", 200), ("b", 400), ("c", 600)):
        (tmp_path / name).write_bytes(bytes(size))
    paths = [tmp_path / name for name in ("a", "b!inside", "c")]
    Digests(tmp_path / "known.json").learn(paths)
    first, second, third = (file_hash(tmp_path / name) for name in "abc")
    expected = [first, f"{second}!inside", third]
    monkeypatch.setattr(raw_files, "file_hash", None)  # all is known
    assert Digests(tmp_path / "known.json").of(paths) == expected
    assert "Hashing: 12 of 12 MB" in (tmp_path / "log.txt").read_text()
