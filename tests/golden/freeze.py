"""Make the golden files anew, after a change that is meant to change results: `python -m tests.golden.freeze`.

Says what a run computed when these files were made, so that a refactoring that changes it is noticed.
"""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import torch

from tests.helpers.commands import generate, train
from tests.helpers.digits import make_digit_corpus

GOLDEN = Path(__file__).parent
CHECKPOINT = GOLDEN / "digits_base_task.pt"
TRAJECTORY = GOLDEN / "trajectory.json"
TRANSLATIONS = GOLDEN / "translations.json"
SMALL = ("--encoder-embed-dim", 32, "--encoder-ffn-embed-dim", 32, "--expert-gates", "base,task", "--num-experts", 2)
RUN = ("--dense-updates", 10, "--expert-gates", "base,task", "--max-update", 24, "--heating-coefficient", 3,
       "--max-epoch", 50, "--log-interval", 2, "--dropout", 0.1)  # fmt: skip


def losses(data: Path, save_dir: Path) -> list[float]:
    """The training loss, every second update, of a run that is dense for 10 updates and then sparse."""
    result = train(data, save_dir, *RUN)
    lines = re.findall(r"train_inner\S* .*?\bloss=([\d.]+)", result.stdout + result.stderr)
    return [float(loss) for loss in lines]


def translations(data: Path) -> dict[str, list[str]]:
    """What the frozen checkpoint makes of the test sets, in the test sets' order."""
    found = {}
    for target in ("aa", "bb", "cc"):
        output = generate(data, CHECKPOINT, target)
        numbered = re.findall(r"^H-(\d+)\t\S+\t(.*)$", output, flags=re.MULTILINE)
        found[target] = [text for _, text in sorted((int(number), text) for number, text in numbered)]
    return found


def without_paths(value: Any) -> Any:
    if isinstance(value, dict):
        return type(value)((key, without_paths(entry)) for key, entry in value.items())
    if isinstance(value, list):
        return [without_paths(entry) for entry in value]
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value


def freeze() -> None:
    with tempfile.TemporaryDirectory() as folder:
        data, runs = make_digit_corpus(Path(folder) / "data"), Path(folder) / "runs"
        TRAJECTORY.write_text(json.dumps(losses(data, runs / "trajectory")) + "\n")
        train(data, runs / "model", *SMALL, "--max-update", 700, "--no-save-optimizer-state")
        torch.save(without_paths(torch.load(runs / "model" / "checkpoint_best.pt")), CHECKPOINT)
        TRANSLATIONS.write_text(json.dumps(translations(data), indent=1) + "\n")


if __name__ == "__main__":
    freeze()
