"""Small runs of version 0.1.0, whose files later versions must go on with: `python -m tests.golden.old_runs`.

`v0_1_0/` was made by this script in a checkout of that version (commit 58e9362) and is never made anew. It has

- `data/`: a data directory as fairseq-preprocess makes them;
- `text/`: parallel text, and `prepared/`: the data directory that `mtmoe prepare text` made of it;
- `sparse/`: a checkpoint of update 8 of a run that was dense for 4, and the run log;
- `parts/`: a checkpoint of update 8 in parts, of two processes;
- `dense/`: a checkpoint of update 8 of the dense twin, with fairseq's own criterion and Adam;
- `results.json`: the gradients' norms of updates 9 to 12 of the same runs, which nobody interrupted, and the loss of
  the last validation.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_mtmoe.io.files import write_text
from tests.helpers import commands
from tests.helpers.digits import make_digit_corpus
from tests.helpers.processes import run_processes
from tests.helpers.training import train_here

OLD = Path(__file__).parent / "v0_1_0"
SAVED, END = 8, 12  # updates
SMALL = (
    "--encoder-embed-dim", 8, "--encoder-ffn-embed-dim", 16, "--encoder-layers", 2, "--decoder-layers", 2,
    "--max-tokens", 200, "--save-interval-updates", SAVED, "--max-update", END,
    "--lr", 0.01, "--warmup-updates", 2,
)  # fmt: skip
OURS = ("--criterion", "moe_label_smoothed_cross_entropy", "--optimizer", "fused_adam")
RUNS: dict[str, tuple[object, ...]] = {
    "sparse": (*SMALL, *OURS, "--num-experts", 4, "--expert-gates", "base,task", "--dense-updates", 4,
               "--heating-coefficient", 3, "--max-epoch", 20),
    "parts": (*SMALL, *OURS, "--num-experts", 4, "--expert-gates", "base,task"),
    "dense": (*SMALL, "--arch", "base_dense_tiny"),
}  # fmt: skip
PROCESSES = {"sparse": 1, "parts": 2, "dense": 1}


NUMERALS = {
    "en": ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"],
    "de": ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"],
}
PREPARE = ("prepare", "text", OLD / "text", "--vocab-size", 44)


def write_numerals(folder: Path) -> None:
    random = np.random.default_rng(1)
    folder.mkdir(parents=True)
    for split, size in {"train": 80, "valid": 8, "test": 8}.items():
        numbers = [random.integers(0, 10, random.integers(2, 7)) for _ in range(size)]
        for lang, words in NUMERALS.items():
            lines = [" ".join(words[digit] for digit in number) + "\n" for number in numbers]
            write_text(folder / f"{split}.en-de.{lang}", "".join(lines))


def train_as(rank: int, data: str, folder: str, options: tuple[object, ...]) -> dict[str, Any]:
    """What the run comes to, as in `results.json`."""
    found = train_here(data, folder, *options)
    return {"norms": found["norms"][SAVED - END :], "validation": found["validations"][-1][0]}


def run(name: str, data: Path, folder: Path, *options: object) -> dict[str, Any]:
    arguments = (str(data), str(folder), (*RUNS[name], *options))
    found: dict[str, Any] = run_processes(train_as, PROCESSES[name], *arguments)[0]
    return found


def make() -> None:
    from fairseq_mtmoe.checkpoints import file_io
    from fairseq_mtmoe.checkpoints.rewriting import copy_with_experts
    from tests.golden.freeze import without_paths

    make_digit_corpus(OLD / "data", train=120, valid=20, test=10)
    write_numerals(OLD / "text")
    commands.run("mtmoe", *PREPARE[:3], OLD / "prepared", *PREPARE[3:])
    results: dict[str, Any] = {}
    for name in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            results[name] = run(name, OLD / "data", Path(folder))
            found = next(Path(folder).glob(f"checkpoint_*_{SAVED}.pt"))
            saved = OLD / name / "checkpoint_last.pt"
            copy_with_experts(found, saved)
            file_io.save(without_paths(file_io.load(str(saved))), str(saved))
            if name == "sparse":
                shutil.copy(Path(folder) / "mtmoe.jsonl", OLD / name)
    (OLD / "results.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(make())
