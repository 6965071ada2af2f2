"""From raw text to shards: `mtmoe prepare corpora` against `spm_encode`, then `fairseq-preprocess`.

    python benchmarks/bench_prepare.py --write
    python benchmarks/bench_prepare.py --write --alone --pairs 50000000    # memory, without the peer

Both get the same made-up pairs, whose words have Zipf's frequencies. The peer does what fairseq's examples do:
SentencePiece encodes both sides at once, and `fairseq-preprocess` binarizes what it wrote. It is given a model and a
dictionary; ours trains its vocabulary, cleans, compares pairs, draws validation data and reports. Time is wall clock,
memory the peak of the sum over all processes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import click
import numpy as np
import psutil
import torch
import yaml
from fairseq.data.indexed_dataset import MMapIndexedDataset
from measure import Report, benchmark, run
from timing import Floor

LANGS = ("en", "de")
SPLITS = ("train", "valid", "test")
OURS, THEIRS = "mtmoe prepare corpora", "spm_encode, then fairseq-preprocess"
FLOOR, SMALL_FLOOR = Floor(3.0, at_most=False), Floor(0.5, at_most=False)  # Starting takes time.
MEMORY_FLOOR = Floor(2048)
WORKERS = 2  # processes, ours and theirs
ENVIRONMENT = {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
WORDS = 30_000
MADE_UP = 1_000_000  # sentences that are not repeated
EVALUATION = 2000
PIECES, SMALL_PIECES = 16_000, 2000
SPM_ENCODE = """
import sys, sentencepiece
model = sentencepiece.SentencePieceProcessor(model_file=sys.argv[1])
with open(sys.argv[2], encoding="utf-8") as lines, open(sys.argv[3], "w", encoding="utf-8") as out:
    for line in lines:
        print(" ".join(model.encode(line.strip(), out_type=str)), file=out)
"""


Run = tuple[float, float]  # wall-clock seconds, and the peak MB of all processes, in which shared pages count once


def sentences(lang: str, seed: int, count: int) -> Iterator[str]:
    """Yield made-up sentences of 4 to 40 words, of the same lengths in every language."""
    lengths = np.random.default_rng(seed).integers(4, 41, count)
    draw = np.random.default_rng([seed, sum(map(ord, lang))])
    letters = np.array(list("etaoinshrdlcumwfgypbvk"))
    words = np.array(["".join(draw.choice(letters, 2 + number % 9)) for number in range(WORDS)])
    shares = 1 / np.arange(1, WORDS + 1)
    edges = np.cumsum(shares / shares.sum())
    for length in lengths:
        ranks = np.searchsorted(edges, draw.random(length))
        yield " ".join(words[np.minimum(ranks, WORDS - 1)]).capitalize() + "."


def repeated(lines: Sequence[str], count: int) -> Iterator[str]:
    """Yield lines again and again; each copy gets a word of its own, so that none is a duplicate."""
    for number in range(count):
        copy, place = divmod(number, len(lines))
        word = "".join(chr(ord("a") + int(digit)) for digit in str(copy))
        yield f"{lines[place]} {word}" if copy else lines[place]


def write_raw(raw: Path, pairs: int, pieces: int) -> None:
    """Write training, validation and test text, and our recipe."""
    raw.mkdir()
    for lang in LANGS:
        base = list(sentences(lang, 1, min(pairs, MADE_UP)))
        write_lines(raw / f"train.en-de.{lang}", repeated(base, pairs))
        write_lines(raw / f"valid.en-de.{lang}", sentences(lang, 2, EVALUATION))
        write_lines(raw / f"test.en-de.{lang}", sentences(lang, 3, EVALUATION))
    corpora = []
    for role in ("train", "test"):
        files = [f"{role}.en-de.{lang}" for lang in LANGS]
        corpora.append({"name": role, "pair": "en-de", "role": role, "files": files})
    held_out = {"valid": EVALUATION, "test": EVALUATION}
    recipe = {"name": "bench", "corpora": corpora, "held_out": held_out, "vocabulary": {"size": pieces}}
    (raw / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


def measured(work: Callable[[], object]) -> Run:
    """Run a work, and return what it and the processes that it started took."""
    peak, ended = 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.25):
            peak = max(peak, sum(map(memory_of, psutil.Process().children(recursive=True))))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    ended.set()
    thread.join()
    return seconds, peak / 2**20


def memory_of(process: psutil.Process) -> float:
    try:
        return float(process.memory_full_info().pss)
    except psutil.Error:
        return 0.0


def encode_and_binarize(raw: Path, shard: Path, out: Path) -> None:
    """Encode all files as fairseq's `scripts/spm_encode.py` does, both sides at once, and binarize them."""
    encoded = out.with_name("encoded")
    encoded.mkdir()
    for split in SPLITS:
        processes = []
        for lang in LANGS:
            files = [shard / "spm.model", *(folder / f"{split}.en-de.{lang}" for folder in (raw, encoded))]
            processes.append(subprocess.Popen([sys.executable, "-c", SPM_ENCODE, *map(str, files)]))
        statuses = [process.wait() for process in processes]
        assert not any(statuses), "SentencePiece failed"
    prefixes = [word for split in SPLITS for word in (f"--{split}pref", encoded / f"{split}.en-de")]
    run(
        "fairseq-preprocess", "--source-lang", "en", "--target-lang", "de", *prefixes, "--destdir", out,
        "--srcdict", shard / "dict.en.txt", "--joined-dictionary", "--workers", WORKERS, **ENVIRONMENT,
    )  # fmt: skip


def check_ids(ours: Path, theirs: Path) -> None:
    """Assert that both have the same ids where cleaning leaves out nothing: in the test data."""
    for lang in LANGS:
        mine, other = (MMapIndexedDataset(str(folder / f"test.en-de.{lang}")) for folder in (ours, theirs))
        assert len(mine) == len(other), f"{ours} and {theirs} must have as many test sentences in {lang}"
        for index in range(len(mine)):
            assert torch.equal(mine[index], other[index]), f"{lang}: test sentence {index} differs"


@benchmark("prepare", "From raw text to shards", "20,000 pairs.", repetitions=0)
@click.option("--pairs", default=5_000_000, help="Sentence pairs.")
@click.option("--alone", is_flag=True, help="Measure ours without the peer.")
def main(report: Report, small: bool, pairs: int, alone: bool) -> None:
    """Prepare the same pairs by both, one after the other."""
    pairs = 20_000 if small else pairs
    with tempfile.TemporaryDirectory() as name:
        raw, ours = Path(name, "raw"), Path(name, "ours")
        write_raw(raw, pairs, SMALL_PIECES if pairs < 100_000 else PIECES)
        command = ("mtmoe", "prepare", "corpora", raw, ours, "--recipe", raw / "recipe.yaml", "--workers", WORKERS)
        runs = {OURS: measured(lambda: run(*command, **ENVIRONMENT))}
        if not alone:
            shard, theirs = ours / "shard0" if (ours / "shard0").exists() else ours, Path(name, "theirs")
            runs[THEIRS] = measured(lambda: encode_and_binarize(raw, shard, theirs))
            check_ids(shard, theirs)
    rows = [[system, pairs / seconds, seconds, peak] for system, (seconds, peak) in runs.items()]
    columns = ["", "pairs/s", "seconds", "peak MB"]
    report.table(f"{pairs:,} made-up pairs, {WORKERS} workers", columns, rows)
    report.figure(f"peak MB, {pairs:,} pairs", runs[OURS][1], MEMORY_FLOOR)
    if not alone:
        title = f"throughput, ours with its vocabulary / the peer's, {pairs:,} pairs"
        report.figure(title, runs[THEIRS][0] / runs[OURS][0], SMALL_FLOOR if small else FLOOR)


if __name__ == "__main__":
    main()
