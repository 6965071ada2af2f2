"""From raw text to binarized shards: `mtmoe prepare corpora` against `spm_encode` and `fairseq-preprocess --workers 2`.

    python benchmarks/bench_prepare.py --write
    python benchmarks/bench_prepare.py --write --memory-pairs 50000000    # what so many take, of ours alone

Both get the same pairs. The peer is what fairseq's examples do: SentencePiece encodes each side, both at once (by the
binary `spm_encode` where the machine has it, else line by line as fairseq's `scripts/spm_encode.py` does), and
`fairseq-preprocess` binarizes what that wrote. It is given plain text without duplicates, a model and a dictionary, so
that it neither unpacks, compares, trains nor counts words; what training a model takes it stands beside. Ours does all
of that: of its two corpora one is packed, a fiftieth of its pairs come twice, some are of the test set, validation data
is drawn, the vocabulary trained. Then it cleans, deals out to shards and reports.

Time is wall clock and the processors', memory is the sum over all processes of a system, as it peaks. The pairs are
made up from words whose frequencies are Zipf's, or are `--text`'s; they are repeated with a word for each copy.
"""

from __future__ import annotations

import gzip
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import psutil
import torch
import yaml
from fairseq.data.indexed_dataset import MMapIndexedDataset
from measure import Report, report_name, report_options
from timing import Floor

LANGS = ("en", "de")
OURS, THEIRS = "mtmoe prepare corpora", "spm_encode, then fairseq-preprocess"
FLOORS = {False: Floor(3.0, at_most=False), True: Floor(0.5, at_most=False)}  # small: starting takes most of the time
MEMORY_FLOOR = Floor(2048, at_most=True)
BIN = Path(sys.executable).parent
MESSAGES = "messages.txt"
STEP = re.compile(r"[A-Z][^:]*: [\d,]+ (of|s\b)")
WORDS = 30_000
MADE_UP = 1_000_000  # sentences that are not repeated
EVALUATION = 2000
PIECES = {False: 16_000, True: 2000}
DUPLICATES = 50  # one of so many pairs
SPM_TRAIN = """
import sys, sentencepiece
sentencepiece.SentencePieceTrainer.train(
    input=sys.argv[2:], model_prefix=sys.argv[1], vocab_size=PIECES, input_sentence_size=400_000,
    shuffle_input_sentence=True, num_threads=2, minloglevel=2,
)
"""
SPM_ENCODE = """
import sys, sentencepiece
model = sentencepiece.SentencePieceProcessor(model_file=sys.argv[1])
with open(sys.argv[2], encoding="utf-8") as lines, open(sys.argv[3], "w", encoding="utf-8") as out:
    for line in lines:
        print(" ".join(model.encode(line.strip(), out_type=str)), file=out)
"""


@dataclass(frozen=True)
class Run:
    seconds: float
    cpu_seconds: float
    peak_mb: float  # proportional set size, so that what processes share counts once


def sentences(lang: str, seed: int, count: int) -> Iterator[str]:
    """Made-up sentences of 4 to 40 words, as many in every language, whose frequencies are Zipf's."""
    long = np.random.default_rng(seed)
    draw = np.random.default_rng([seed, sum(map(ord, lang))])
    letters = np.array(list("etaoinshrdlcumwfgypbvk"))
    words = np.array(["".join(draw.choice(letters, 2 + number % 9)) for number in range(WORDS)])
    shares = 1 / np.arange(1, WORDS + 1)
    edges = np.cumsum(shares / shares.sum())
    for start in range(0, count, 10_000):
        lengths = long.integers(4, 41, min(10_000, count - start))
        chosen = words[np.minimum(np.searchsorted(edges, draw.random(lengths.sum())), WORDS - 1)]
        for end, length in zip(np.cumsum(lengths), lengths, strict=True):
            yield " ".join(chosen[end - length : end]).capitalize() + "."


def repeated(lines: Sequence[str], count: int) -> Iterator[str]:
    """Lines again and again, with the number of the copy as a word of letters, so that none is a duplicate."""
    for number in range(count):
        copy = "".join(chr(ord("a") + int(digit)) for digit in str(number // len(lines)))
        line = lines[number % len(lines)]
        yield f"{line} {copy}" if number >= len(lines) else line


def with_duplicates(lines: Iterable[str], tested: Sequence[str]) -> Iterator[str]:
    """The lines, one of fifty twice, at first those of the test set: the same on both sides, so that pairs are."""
    for number, line in enumerate(lines):
        yield line
        if number % DUPLICATES == 0:
            again = number // DUPLICATES
            yield tested[again] if again < len(tested) // 2 else line


def write_raw(raw: Path, text: Sequence[Path], pairs: int, pieces: int, with_peer: bool = True) -> None:
    """The files of a run: training text of two corpora, a test set, and a recipe; for the peer the pairs alone."""
    raw.mkdir()
    for side, lang in enumerate(LANGS):
        if text:
            base = text[side].read_text(encoding="utf-8").split("\n")[:-1]
        else:
            base = list(sentences(lang, hash_of("train"), min(pairs, MADE_UP)))
        tested = list(sentences(lang, hash_of("test"), EVALUATION))
        write(raw / f"test.en-de.{lang}", tested)
        write(raw / f"valid.en-de.{lang}", sentences(lang, hash_of("valid"), EVALUATION))
        if with_peer:
            write(raw / f"train.en-de.{lang}", repeated(base, pairs))
        lines = with_duplicates(repeated(base, pairs), tested)
        write(raw / f"one.{lang}", itertools.islice(lines, pairs // 2))
        write(raw / f"two.{lang}.gz", lines)
    corpora = [
        {"name": "one", "pair": "en-de", "role": "train", "files": [f"one.{lang}" for lang in LANGS]},
        {"name": "two", "pair": "en-de", "role": "train", "files": [f"two.{lang}.gz" for lang in LANGS]},
        {"name": "test", "pair": "en-de", "role": "test", "files": [f"test.en-de.{lang}" for lang in LANGS]},
    ]
    held_out = {"valid": EVALUATION, "test": EVALUATION}
    recipe = {"name": "bench", "corpora": corpora, "held_out": held_out, "vocabulary": {"size": pieces}}
    (raw / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")


def write(path: Path, lines: Iterable[str]) -> None:
    packed = path.suffix == ".gz"
    with gzip.open(path, "wt", 1, encoding="utf-8") if packed else open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


def hash_of(split: str) -> int:
    return {"train": 1, "valid": 2, "test": 3}[split]


def measured(work: Callable[[], object]) -> Run:
    peak, ended = [0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.25):
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
    try:
        return float(process.memory_full_info().pss)
    except psutil.Error:
        return 0.0


def run(*command: object) -> str:
    """Run a command and return its messages."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{result.stdout[-2000:]}\n{result.stderr[-4000:]}")
    return result.stderr


def train_by_spm(raw: Path, model: Path, pieces: int) -> None:
    files = [raw / f"train.en-de.{lang}" for lang in LANGS]
    run(sys.executable, "-c", SPM_TRAIN.replace("PIECES", str(pieces)), model, *files)


def encode_by_spm(raw: Path, model: Path, out: Path) -> None:
    out.mkdir()
    names = [f"{split}.en-de.{lang}" for split in ("train", "test", "valid") for lang in LANGS]
    binary = shutil.which("spm_encode")
    for first in range(0, len(names), 2):
        running = []
        for name in names[first : first + 2]:
            files = (model, raw / name, out / name)
            ours = [sys.executable, "-c", SPM_ENCODE, *map(str, files)]
            theirs = [binary, f"--model={files[0]}", f"--output={files[2]}", str(files[1])]
            running.append(subprocess.Popen(ours if binary is None else [str(part) for part in theirs]))
        statuses = [process.wait() for process in running]
        if any(statuses):
            raise SystemExit("spm_encode failed")


def preprocess(raw: Path, encoded: Path, out: Path, dictionary: Path, workers: int) -> None:
    splits = [part for split in ("train", "valid", "test") for part in (f"--{split}pref", encoded / f"{split}.en-de")]
    run(BIN / "fairseq-preprocess", "--source-lang", "en", "--target-lang", "de", *splits, "--destdir", out,
        "--srcdict", dictionary, "--joined-dictionary", "--workers", workers)  # fmt: skip


def check_ids(ours: Path, theirs: Path) -> str:
    """That both have the same ids where cleaning leaves out nothing: in the test data.

    A binary `spm_encode` of another version breaks ties between equally likely pieces otherwise: in some sentences of
    ten thousand.
    """
    same = total = 0
    for lang in LANGS:
        mine, other = (read_ids(folder / f"test.en-de.{lang}") for folder in (ours, theirs))
        assert len(mine) == len(other), f"{ours} and {theirs} must have as many test sentences in {lang}"
        total += len(mine)
        same += sum(torch.equal(mine[index], other[index]) for index in range(len(mine)))
    least = 0.99 * total if shutil.which("spm_encode") else total
    assert same >= least, f"{ours} and {theirs} have the same ids in {same} of {total} test sentences alone"
    return f"The ids of {same:,} of {total:,} test sentences are the same."


def read_ids(prefix: Path) -> MMapIndexedDataset:
    return MMapIndexedDataset(str(prefix))


def prepare(raw: Path, out: Path, workers: int) -> None:
    """Prepare the recipe in `raw`, and write the command's messages beside `out`."""
    messages = run(BIN / "mtmoe", "prepare", "corpora", raw, out, "--recipe", raw / "recipe.yaml", "--workers", workers)
    out.with_name(MESSAGES).write_text(messages, encoding="utf-8")


def both(place: Path, text: tuple[Path, ...], pairs: int, pieces: int, workers: int, report: Report) -> dict[str, Run]:
    raw, encoded, theirs, ours = (place / name for name in ("raw", "encoded", "theirs", "ours"))
    write_raw(raw, text, pairs, pieces)
    runs = {OURS: measured(lambda: prepare(raw, ours, workers))}
    shard = ours / "shard0" if (ours / "shard0").exists() else ours
    model, dictionary = shard / "spm.model", shard / "dict.en.txt"
    parts = {
        "… of which spm_encode": measured(lambda: encode_by_spm(raw, model, encoded)),
        "… of which fairseq-preprocess": measured(lambda: preprocess(raw, encoded, theirs, dictionary, workers)),
    }
    training = measured(lambda: train_by_spm(raw, place / "peer", pieces))
    report.text(check_ids(shard, theirs))
    report.text(f"Ours keeps:\n\n{kept(ours)}\n\nIts steps:\n\n```\n{steps(ours)}\n```")
    runs[THEIRS] = added(*parts.values())
    return {**runs, **parts, "the peer's model besides": training}


def added(*parts: Run) -> Run:
    seconds, cpu = sum(part.seconds for part in parts), sum(part.cpu_seconds for part in parts)
    return Run(seconds, cpu, max(part.peak_mb for part in parts))


def kept(ours: Path) -> str:
    lines = (ours / "report.md").read_text(encoding="utf-8").split("\n")
    return "\n".join(itertools.takewhile(str.strip, itertools.dropwhile(lambda line: not line.startswith("|"), lines)))


def steps(ours: Path) -> str:
    """Return the last message of each step."""
    messages = ours.with_name(MESSAGES).read_text(encoding="utf-8").splitlines()
    last = {line.split(":")[0]: line for line in messages if STEP.match(line)}
    return "\n".join(last.values())


def compare(runs: dict[str, Run], pairs: int, kind: str, floor: Floor, workers: int, report: Report) -> None:
    ours, theirs = runs[OURS], runs[THEIRS]
    with_model = added(theirs, runs["the peer's model besides"])
    rows = [
        [name, pairs / one.seconds, one.seconds, one.cpu_seconds, one.peak_mb, theirs.seconds / one.seconds]
        for name, one in runs.items()
    ]
    columns = ["", "pairs/s", "seconds", "of processors", "peak MB", "times the peer's throughput"]
    peer = "the binary" if shutil.which("spm_encode") else "the library, line by line"
    report.table(f"{pairs:,} pairs of {kind}, {workers} workers", columns, rows, f"`spm_encode` is {peer}.")
    title = f"throughput, ours with its vocabulary / the peer's, {pairs:,} pairs"
    report.figure(title, theirs.seconds / ours.seconds, floor)
    report.figure("the same, the peer's model included", with_model.seconds / ours.seconds, floor)
    report.figure(f"peak MB, {pairs:,} pairs", ours.peak_mb, MEMORY_FLOOR)


def memory_run(place: Path, text: tuple[Path, ...], pairs: int, pieces: int, workers: int, report: Report) -> None:
    raw, ours = place / "raw", place / "ours"
    write_raw(raw, text, pairs, pieces, with_peer=False)
    one = measured(lambda: prepare(raw, ours, workers))
    work, data = (size_of(folder) / 2**30 for folder in (ours.with_name(f".{ours.name}.work"), ours))
    row = [OURS, pairs / one.seconds, one.seconds, one.cpu_seconds, one.peak_mb, work, data]
    columns = ["", "pairs/s", "seconds", "of processors", "peak MB", "work folder GiB", "DATA GiB"]
    report.table(f"{pairs:,} pairs, {workers} workers", columns, [row])
    report.figure(f"peak MB, {pairs:,} pairs", one.peak_mb, MEMORY_FLOOR)
    report.text(f"```\n{steps(ours)}\n```")


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@click.command()
@click.option("--pairs", default=5_000_000, show_default=True, help="Sentence pairs.")
@click.option("--memory-pairs", type=int, help="Only what so many pairs take of memory and disk, without the peer.")
@click.option("--workers", default=2, show_default=True, help="Processes, ours and theirs.")
@click.option("--text", nargs=2, type=click.Path(path_type=Path), help="Real text: source and target file.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where files are written.  [default: a temporary one]")
@report_options("20,000 pairs.")
def main(
    pairs: int,
    memory_pairs: int | None,
    workers: int,
    text: tuple[Path, ...] | None,
    folder: Path | None,
    small: bool,
    write: bool,
    check: bool,
) -> None:
    """Prepare the same pairs by both, one after the other."""
    small = small or check
    pairs = 20_000 if small else pairs
    report = Report(report_name("prepare_memory" if memory_pairs else "prepare", small), "From raw text to shards")
    settings = (workers, report)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        if memory_pairs:
            memory_run(Path(place), text or (), memory_pairs, PIECES[memory_pairs < 100_000], *settings)
        else:
            runs = both(Path(place), text or (), pairs, PIECES[pairs < 100_000], *settings)
            compare(runs, pairs, "real sentences, repeated" if text else "made-up sentences", FLOORS[small], *settings)
    report.finish(write, check)


if __name__ == "__main__":
    main()
