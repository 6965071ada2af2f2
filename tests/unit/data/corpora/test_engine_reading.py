"""Workers read raw files themselves: the same data however these are packed and cut."""

import gzip
import pickle
import tarfile
from dataclasses import dataclass, field

from fairseq_mtmoe.data.corpora import blocks, raw_files
from fairseq_mtmoe.data.corpora.engine import cleaning
from fairseq_mtmoe.data.corpora.raw_files import Digests
from fairseq_mtmoe.data.corpora.readers import parts_of
from fairseq_mtmoe.io.digest import digest_of_file
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
    assert workers.done["unpack"] == 3 and ids(tmp_path / "packed") == ids(tmp_path / "plain")
    assert not (tmp_path / ".packed.work" / "cleaned" / "unpacked").exists()


@dataclass(frozen=True)
class Posting(Counting):
    """Workers that record how many bytes go to them and come back."""

    sizes: list[int] = field(default_factory=list)

    def results(self, jobs):
        for number, job in enumerate(jobs):
            result = pickle.loads(pickle.dumps(job))()
            if job.func in (parts_of, cleaning.clean_part):
                self.sizes.append(len(pickle.dumps(job)) + len(pickle.dumps(result)))
            yield number, result


def test_no_text_goes_through_the_main_process(raw, tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 50_000)
    lines = [f"{line} {'word ' * 40}{number}" for number, line in enumerate(sentences("long", 2000))]
    for name in ("train-de-0.en", "train-de-0.de"):
        (raw / name).write_text("".join(f"{line} {name[-2:]}\n" for line in lines), encoding="utf-8")
    workers = Posting()
    prepare_small(raw, tmp_path / "data", workers)
    assert 0 < sum(workers.sizes) < 20_000 < sum(path.stat().st_size for path in raw.glob("train*")) / 20


def test_a_corpus_in_one_piece_makes_the_same_ids(raw, tmp_path):
    """Such as a translation memory, which has to be read as a whole."""
    prepare_small(raw, tmp_path / "plain")
    sides = [(raw / f"train-de-0.{lang}").read_text(encoding="utf-8").splitlines() for lang in ("en", "de")]
    unit = '<tu><tuv xml:lang="en"><seg>{}</seg></tuv><tuv xml:lang="de"><seg>{}</seg></tuv></tu>'
    units = "".join(map(unit.format, *sides))
    (raw / "a.tmx").write_text(f'<tmx version="1.4"><body>{units}</body></tmx>', encoding="utf-8")
    with_files(raw, train_de_0=["a.tmx"])
    prepare_small(raw, tmp_path / "data")
    assert ids(tmp_path / "data") == ids(tmp_path / "plain")


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
