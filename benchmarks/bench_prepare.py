"""From raw text to binarized shards: `mtmoe prepare corpora` against `spm_encode` and `fairseq-preprocess --workers 2`.

    python benchmarks/bench_prepare.py --write

Both get the same pairs and the same SentencePiece model, in files of one sentence per line. The peer encodes each side
(by `spm_encode` where the machine has it, else line by line as fairseq's `scripts/spm_encode.py` does, both sides at
once), and `fairseq-preprocess` binarizes what that wrote, with the dictionary given, so that it counts no words. Ours
also cleans, removes duplicates and evaluation sentences, deals out to shards and reports. Time is wall clock and the
processor's, memory is the sum over all processes of a system, as it peaks.

The pairs are made up from words whose frequencies are Zipf's, or are `--text`'s, repeated with a number in each copy.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import psutil
import yaml
from measure import Report, report_name
from timing import Floor

from fairseq_mtmoe.data.corpora.spm import train_model

LANGS = ("en", "de")
FLOOR = Floor(3.0, at_most=False)
MEMORY_FLOOR = Floor(2048, at_most=True)
BIN = Path(sys.executable).parent
WORDS = 30_000
EVALUATION = 2000
SPM_ENCODE = """
import sys, sentencepiece
model = sentencepiece.SentencePieceProcessor(model_file=sys.argv[1])
with open(sys.argv[2], encoding="utf-8") as lines, open(sys.argv[3], "w", encoding="utf-8") as out:
    for line in lines:
        print(" ".join(model.encode(line.strip(), out_type=str)), file=out)
"""


@dataclass(frozen=True)
class Run:
    """What a system took."""

    seconds: float
    cpu_seconds: float
    peak_mb: float  # proportional set size, so that what processes share counts once


def sentences(lang: str, seed: int, count: int) -> Iterator[str]:
    """Made-up sentences of 4 to 40 words, whose frequencies are Zipf's."""
    draw = np.random.default_rng([seed, sum(map(ord, lang))])
    letters = np.array(list("etaoinshrdlcumwfgypbvk"))
    words = np.array(["".join(draw.choice(letters, 2 + number % 9)) for number in range(WORDS)])
    shares = 1 / np.arange(1, WORDS + 1)
    edges = np.cumsum(shares / shares.sum())
    for start in range(0, count, 10_000):
        lengths = draw.integers(4, 41, min(10_000, count - start))
        chosen = words[np.minimum(np.searchsorted(edges, draw.random(lengths.sum())), WORDS - 1)]
        for end, length in zip(np.cumsum(lengths), lengths, strict=True):
            yield " ".join(chosen[end - length : end]).capitalize() + "."


def repeated(path: Path, count: int) -> Iterator[str]:
    """The lines of a file, again and again, with the number of the copy in letters, so that none is a duplicate."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    for number in range(count):
        copy = "".join(chr(ord("a") + int(digit)) for digit in str(number // len(lines)))
        yield f"{lines[number % len(lines)]} {copy}" if number >= len(lines) else lines[number]


def write_raw(raw: Path, text: Sequence[Path], pairs: int) -> None:
    """The files of a run: training and evaluation text, a model, and a recipe."""
    raw.mkdir()
    for side, lang in enumerate(LANGS):
        for split, count in (("train", pairs), ("test", EVALUATION), ("valid", EVALUATION)):
            is_real = text and split == "train"
            lines = repeated(text[side], count) if is_real else sentences(lang, hash_of(split), count)
            with open(raw / f"{split}.en-de.{lang}", "w", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)
    sample = []
    for lang in LANGS:
        with open(raw / f"train.en-de.{lang}", encoding="utf-8") as file:
            sample += [line.rstrip("\n") for line, _ in zip(file, range(min(pairs, 20_000)), strict=False)]
    (raw / "spm.model").write_bytes(train_model(sample, 8000, 1.0))
    corpora = [
        {"name": split, "pair": "en-de", "role": split, "files": [f"{split}.en-de.{lang}" for lang in LANGS]}
        for split in ("train", "test", "valid")
    ]
    recipe = {"name": "bench", "corpora": corpora, "vocabulary": {"model": "spm.model"}}
    (raw / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")


def hash_of(split: str) -> int:
    """A seed for a split."""
    return {"train": 1, "valid": 2, "test": 3}[split]


def measured(work: Callable[[], object]) -> Run:
    """Run what starts processes, and watch them."""
    peak, ended = [0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            peak[0] = max(peak[0], sum(map(memory_of, psutil.Process().children(recursive=True))))

    thread = threading.Thread(target=watch, daemon=True)
    before, start = os.times(), time.perf_counter()
    thread.start()
    work()
    seconds, after = time.perf_counter() - start, os.times()
    ended.set()
    thread.join()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Run(seconds, cpu, peak[0] / 2**20)


def memory_of(process: psutil.Process) -> float:
    """A process' bytes, its share of what it has in common with others included."""
    try:
        return float(process.memory_full_info().pss)
    except psutil.Error:
        return 0.0


def run(*command: object) -> None:
    """A command, which must succeed."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{result.stdout[-2000:]}\n{result.stderr[-4000:]}")


def encode_by_spm(raw: Path, out: Path) -> None:
    """Both sides of all splits, two at a time."""
    out.mkdir()
    names = [f"{split}.en-de.{lang}" for split in ("train", "test", "valid") for lang in LANGS]
    binary = shutil.which("spm_encode")
    for first in range(0, len(names), 2):
        running = []
        for name in names[first : first + 2]:
            files = (raw / "spm.model", raw / name, out / name)
            ours = [sys.executable, "-c", SPM_ENCODE, *map(str, files)]
            theirs = [binary, f"--model={files[0]}", f"--output={files[2]}", str(files[1])]
            running.append(subprocess.Popen(ours if binary is None else [str(part) for part in theirs]))
        if any(process.wait() for process in running):
            raise SystemExit("spm_encode failed")


def preprocess(raw: Path, encoded: Path, out: Path, dictionary: Path, workers: int) -> None:
    """fairseq's, with a dictionary."""
    splits = [part for split in ("train", "valid", "test") for part in (f"--{split}pref", encoded / f"{split}.en-de")]
    run(BIN / "fairseq-preprocess", "--source-lang", "en", "--target-lang", "de", *splits, "--destdir", out,
        "--srcdict", dictionary, "--joined-dictionary", "--workers", workers)  # fmt: skip


def check_ids(ours: Path, theirs: Path) -> str:
    """That both have the same ids where cleaning leaves out nothing: in the test data; what of the training data is."""
    sizes = []
    for lang in LANGS:
        mine, other = ours / f"test.en-de.{lang}.bin", theirs / f"test.en-de.{lang}.bin"
        assert mine.read_bytes() == other.read_bytes(), f"{mine} and {other} must be the same"
        mine, other = ours / f"train.en-de.{lang}.bin", theirs / f"train.en-de.{lang}.bin"
        sizes.append(mine.stat().st_size / other.stat().st_size)
    return f"The ids of the test data are the same, byte for byte; ours keeps {min(sizes):.1%} of the training ids."


@click.command()
@click.option("--pairs", default=5_000_000, show_default=True, help="Sentence pairs.")
@click.option("--workers", default=2, show_default=True, help="Processes, ours and theirs.")
@click.option("--text", nargs=2, type=click.Path(path_type=Path), help="Real text: source and target file.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where files are written.  [default: a temporary one]")
@click.option("--small", is_flag=True, help="20,000 pairs.")
@click.option("--write", is_flag=True, help="Write the report to benchmarks/results.")
@click.option("--check", "check_floors", is_flag=True, help="Small, and fail where a floor is missed by over 20%.")
def main(
    pairs: int, workers: int, text: tuple[Path, ...], folder: Path | None, small: bool, write: bool, check_floors: bool
) -> None:
    """Prepare the same pairs by both, one after the other."""
    small = small or check_floors
    pairs = 20_000 if small else pairs
    report = Report(report_name("prepare", small), "From raw text to shards")
    with tempfile.TemporaryDirectory(dir=folder) as place:
        raw, encoded, theirs, ours = (Path(place, name) for name in ("raw", "encoded", "theirs", "ours"))
        write_raw(raw, text or (), pairs)
        command = (
            BIN / "mtmoe",
            "prepare",
            "corpora",
            raw,
            ours,
            "--recipe",
            raw / "recipe.yaml",
            "--workers",
            workers,
        )
        runs = {"mtmoe prepare corpora": measured(lambda: run(*command))}
        shard = ours / "shard0" if (ours / "shard0").exists() else ours
        dictionary = shard / "dict.en.txt"
        parts = {
            "spm_encode": measured(lambda: encode_by_spm(raw, encoded)),
            "fairseq-preprocess": measured(lambda: preprocess(raw, encoded, theirs, dictionary, workers)),
        }
        if shard is ours:
            report.text(check_ids(ours, theirs))
        log = (ours.with_name(f".{ours.name}.work") / "log.txt").read_text(encoding="utf-8")
    both = Run(
        sum(part.seconds for part in parts.values()),
        sum(part.cpu_seconds for part in parts.values()),
        max(part.peak_mb for part in parts.values()),
    )
    runs |= {
        "spm_encode, then fairseq-preprocess": both,
        **{f"… of which {name}": part for name, part in parts.items()},
    }
    rows = [
        [name, pairs / one.seconds, one.seconds, one.cpu_seconds, one.peak_mb, both.seconds / one.seconds]
        for name, one in runs.items()
    ]
    columns = ["", "pairs/s", "seconds", "of processors", "peak MB", "times the peer's throughput"]
    kind = "real sentences, repeated" if text else "made-up sentences"
    peer = "the binary" if shutil.which("spm_encode") else "the library, line by line"
    report.table(f"{pairs:,} pairs of {kind}, {workers} workers", columns, rows, f"`spm_encode` is {peer}.")
    own = runs["mtmoe prepare corpora"]
    report.figure(f"throughput, ours / the peer's, {pairs:,} pairs", both.seconds / own.seconds, FLOOR)
    report.figure(f"peak MB, {pairs:,} pairs", own.peak_mb, MEMORY_FLOOR)
    report.text("```\n" + "\n".join(line for line in log.splitlines() if "pairs/s" in line) + "\n```")
    report.finish(write, check_floors)


if __name__ == "__main__":
    main()
