"""Validation perplexity per pair and tier of a stock fairseq run, by the task's own code, after the run.

Stock fairseq logs the total alone. Its checkpoints load into the dense twin, and `translation_heated` validates them as
it does its own models; the result is a run log beside them, as any other run has.

    python benchmarks/tier_perplexity.py RUN DATA … (options of fairseq-train for the twin, --save-dir RUN among them)
"""

from __future__ import annotations

import re
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics

from fairseq_mtmoe import register

LOG_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) \| INFO \| \S+ \| (.*)")
VALIDATED = re.compile(r'"valid_num_updates": "(\d+)"')


def training_minutes(log: str) -> dict[int, float]:
    """Minutes of training until each validation, by update; the time of validations does not count.

    Args:
        log: what `fairseq-train --log-format json` printed; its times are whole seconds.
    """
    minutes: dict[int, float] = {}
    spent, since, until = 0.0, None, None
    for line in log.splitlines():
        found = LOG_TIME.match(line)
        if not found:
            continue
        now, text = datetime.fromisoformat(found.group(1)).timestamp(), found.group(2)
        if since is None and text == "Start iterating over samples":
            since = now
        elif text.startswith("begin validation") and since is not None:
            spent, until = spent + now - since, now
        elif (update := VALIDATED.search(text)) and until is not None:
            minutes[int(update.group(1))] = spent / 60
            since, until = now, None
    return minutes


def checkpoints(run: Path) -> dict[int, dict[str, Any]]:
    """The states of a run's checkpoints by update, each once."""
    states = (torch.load(path, weights_only=True) for path in sorted(run.glob("checkpoint*.pt")))
    by_update = {int(state["optimizer_history"][-1]["num_updates"]): state for state in states}
    return dict(sorted(by_update.items()))


@torch.no_grad()
def validate(task: Any, model: Any, criterion: Any, update: int, max_tokens: int) -> None:
    """One validation, as fairseq's trainer does it; the task writes it to the run log."""
    model.eval()
    task.begin_valid_epoch(1, model)
    batches = task.get_batch_iterator(task.dataset("valid"), max_tokens=max_tokens).next_epoch_itr(shuffle=False)
    with metrics.aggregate(new_root=True) as meters:
        logs = [task.valid_step(batch, model, criterion)[2] for batch in batches]
        task.reduce_metrics(logs, criterion)
    task.post_validate(model, {"num_updates": update}, meters)


def main() -> None:
    """Validate every checkpoint of the run."""
    run, arguments = Path(sys.argv[1]), sys.argv[2:]
    register()
    args = options.parse_args_and_arch(options.get_training_parser(), input_args=_without_user_dir(arguments))
    cfg = convert_namespace_to_omegaconf(args)
    task = tasks.setup_task(cfg.task)
    task.load_dataset("valid")
    model, criterion = task.build_model(cfg.model), task.build_criterion(cfg.criterion)
    minutes = training_minutes((run / "train.log").read_text(encoding="utf-8"))
    for update, state in checkpoints(run).items():
        model.load_state_dict(state["model"])
        task.stopwatch.seconds = 60 * minutes[update]
        validate(task, model, criterion, update, cfg.dataset.max_tokens)


def _without_user_dir(arguments: list[str]) -> list[str]:
    """The plugin is registered already; fairseq would look for it where it was imported from."""
    if "--user-dir" not in arguments:
        return arguments
    at = arguments.index("--user-dir")
    return arguments[:at] + arguments[at + 2 :]


if __name__ == "__main__":
    main()
