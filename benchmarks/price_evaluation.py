"""Evaluates the checkpoints of one run of `bench_prices.py` in several ways, and writes `RUN/evaluation.json`.

    python benchmarks/price_evaluation.py RUN --memories

Every checkpoint is validated greedily and at the running prices; the last one also as training routes, balanced
within each batch of validation (of one language pair, as the task makes them). With `--memories`, the first, the middle
and the last checkpoint are validated at means of the run's prices with other memories, too. What is in the file is not
done again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import torch
from fairseq import checkpoint_utils
from price_memory import means, memory_mean, name, prices_until, read_log
from price_runs import DENSE, GREEDY, PRICES, WITHIN
from torch import Tensor, nn

from fairseq_mtmoe import register
from fairseq_mtmoe.io.files import read_json, write_text
from fairseq_mtmoe.moe import BaseGate, MoELayer

EVALUATION = "evaluation.json"
PRICES_LOG = "prices.jsonl"
MAX_TOKENS = 3000  # of a batch of validation, padding included


class Evaluator:
    """The model of one checkpoint and the validation data of its task.

    Args:
        path: the checkpoint.
        earlier: the evaluator of another checkpoint of the same run, whose task with its data serves again.
    """

    def __init__(self, path: Path, earlier: Evaluator | None = None) -> None:
        task = earlier.task if earlier else None
        (self.model,), cfg, self.task = checkpoint_utils.load_model_ensemble_and_task([str(path)], task=task)
        self.criterion = self.task.build_criterion(cfg.criterion)
        if earlier is None:
            self.task.load_dataset("valid")
        self._batches = self.task.get_batch_iterator(self.task.dataset("valid"), max_tokens=MAX_TOKENS)
        self.model.eval()
        self.layers = [layer for layer in self.model.modules() if isinstance(layer, MoELayer)]
        self.gates = [layer.gate for layer in self.layers]

    @torch.no_grad()
    def validate(self, way: str) -> dict[str, Any]:
        """Sums of each pair's negative log likelihoods (nats) and tokens, and how tokens were routed in this way."""
        nll, tokens = dict.fromkeys(self.task.lang_pairs, 0.0), dict.fromkeys(self.task.lang_pairs, 0)
        for layer in self.layers:
            layer.load.reset()
            layer.load.enabled = True
        with routed(self.gates, way), counting_changes(self.gates) as changed:
            for batch in self._batches.next_epoch_itr(shuffle=False):
                _, _, log = self.task.valid_step(batch, self.model, self.criterion)
                nll[batch["task"]] += float(log["nll_loss"])
                tokens[batch["task"]] += int(log["ntokens"])
        loads = [layer.load.counts.sum(0).tolist() for layer in self.layers]
        return {"nll": nll, "tokens": tokens, "loads": loads, "changed": changed}

    def set_prices(self, prices_LN: Tensor) -> None:
        """Let the gates choose at these prices, one row for each layer."""
        for gate, price_N in zip(self.gates, prices_LN, strict=True):
            gate.prices.total.copy_(price_N)
            gate.prices.weight.fill_(1)

    def check_log(self, prices_SLN: Tensor, memory: float) -> None:
        """The mean of the run's log is what the checkpoint has."""
        found_LN = memory_mean(prices_SLN, memory).float()
        own_LN = torch.stack([gate.prices.mean for gate in self.gates])
        torch.testing.assert_close(found_LN, own_LN, rtol=1e-3, atol=1e-3)


@contextmanager
def routed(gates: Sequence[BaseGate], way: str) -> Iterator[None]:
    """Inside, gates route in one of the three ways, whatever the model's mode."""
    before = [gate.routing for gate in gates]
    for gate in gates:
        gate.routing = replace(gate.routing, training="balanced", evaluation=PRICES if way == WITHIN else way)
    # fairseq puts the whole model into evaluation before every batch.
    hooks = [gate.register_forward_pre_hook(_train) for gate in gates if way == WITHIN]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for gate, routing in zip(gates, before, strict=True):
            gate.routing = routing
            gate.eval()


def _train(gate: nn.Module, args: Any) -> None:
    gate.train()


@contextmanager
def counting_changes(gates: Sequence[BaseGate]) -> Iterator[list[int]]:
    """Inside, count for each gate the tokens that it sends elsewhere than to the expert with the highest score."""
    changed = [0] * len(gates)
    index = {gate: number for number, gate in enumerate(gates)}

    def compare(gate: Any, args: Any, routing: Any) -> None:
        best_T = (args[0].float() @ gate.weight.float().t()).argmax(1)
        changed[index[gate]] += int(((routing.expert_T != best_T) & (routing.expert_T < gate.num_experts)).sum())

    hooks = [gate.register_forward_hook(compare) for gate in gates]
    try:
        yield changed
    finally:
        for hook in hooks:
            hook.remove()


def checkpoints(run: Path) -> dict[int, Path]:
    """The run's checkpoints by update, each once."""
    found = {int(path.stem.rpartition("_")[2]): path for path in run.glob("checkpoint_*_*.pt")}
    return dict(sorted(found.items()))


def first_middle_last(updates: Sequence[int]) -> list[int]:
    """Three of the updates, or as many as there are."""
    return sorted({updates[0], updates[len(updates) // 2], updates[-1]}) if updates else []


def evaluate(run: Path, memories: bool) -> None:
    """Add to the run's file what is missing, one checkpoint after the other."""
    path, paths = run / EVALUATION, checkpoints(run)
    found: dict[str, Any] = read_json(path) if path.exists() else {"updates": {}}
    done = found["updates"]
    log = read_log(run / PRICES_LOG) if (run / PRICES_LOG).exists() else {}
    sparse = [update for update in paths if update in log]
    chosen = first_middle_last(sparse) if memories else []
    evaluator = None
    for update in paths:
        entry = done.get(str(update), {})
        if "ways" in entry and ("memories" in entry or update not in chosen):
            continue
        evaluator = Evaluator(paths[update], evaluator)
        if "ways" not in entry:
            ways = (GREEDY, PRICES, *([WITHIN] if update == sparse[-1] else [])) if update in sparse else (DENSE,)
            entry["ways"] = {way: evaluator.validate(way) for way in ways}
        if update in chosen:
            entry["memories"] = of_memories(evaluator, prices_until(log, update), entry["ways"])
        done[str(update)], found["tiers"] = entry, evaluator.task.pair_tiers()
        write_text(path, json.dumps(found))
        click.echo(f"{run.name}: update {update} validated")


def of_memories(evaluator: Evaluator, prices_SLN: Tensor, ways: dict[str, Any]) -> dict[str, Any]:
    """What `validate` finds at means of the prices with each memory; the model's own is among `ways`."""
    own = evaluator.gates[0].prices.memory
    evaluator.check_log(prices_SLN, own)
    found = {}
    for memory, prices_LN in means(prices_SLN).items():
        evaluator.set_prices(prices_LN)
        found[memory] = ways[PRICES] if memory == name(own) else evaluator.validate(PRICES)
    return found


@click.command()
@click.argument("run", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--memories", is_flag=True, help="Also with other memories.")
def main(run: Path, memories: bool) -> None:
    """Validate the checkpoints of RUN as far as not done yet."""
    logging.disable(logging.INFO)
    register()
    torch.set_num_threads(1)
    evaluate(run, memories)


if __name__ == "__main__":
    main()
