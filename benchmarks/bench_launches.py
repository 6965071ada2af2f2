"""What a GPU would launch for an expert layer and for a whole update: operations, counted and not timed.

    python benchmarks/bench_launches.py --write

A launch costs some microseconds, whatever is computed. Layers are in bfloat16 on a pretended GPU (`tests/helpers`), and
the numbers are the same on every machine. Beside them is the dense block's layer.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from launches import LaunchCounter, as_words, count
from measure import Report, report_options
from timing import Floor
from torch import nn

from fairseq_mtmoe.moe import BaseRouting, ExpertBank, MoELayer, build_gate, remember_prices, running_prices
from fairseq_mtmoe.moe.gates import BaseGate
from fairseq_mtmoe.moe.parallel.placement import place_experts
from fairseq_mtmoe.moe.parallel.token_shuffle import TokenCounts, TokenShuffle

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.helpers import waits
from tests.helpers.digits import make_digit_corpus
from tests.helpers.pretended_gpu import pretended_gpu
from tests.helpers.processes import run_processes

LENGTH, SENTENCES, H, F, TASKS = 30, 7, 64, 128, 3
EXPERTS = (8, 64)
GATES = {"BASE": "base", "task": "task", "Switch": "switch"}
# Compute capability, and whether there is Triton, which torch's builds for CUDA bring along.
CARDS = {
    "capability 9, Triton": ((9, 0), True),
    "capability 8, Triton": ((8, 0), True),
    "capability 9, no Triton": ((9, 0), False),
}
LIMITS = {"BASE": (60, 25), "task": (25, 25), "Switch": (25, 25)}  # training, evaluation: beyond the dense layer's
COLUMNS = ("layer", "forward", "backward", "training beyond dense", "views", "evaluation", "evaluation beyond dense")
NOTE = ("Operations that are computed in one layer, forward and backward, with padding, and in evaluation forward; "
        "gradients of input, gate and weights. Views are those of training.")  # fmt: skip
UPDATE_COLUMNS = ("model", "launches", "beyond dense", "for each expert layer", "views")
UPDATE_NOTE = ("fairseq's trainer with our loss and Adam, `--bf16`: forward, backward, clipping and the optimizer of a "
               f"model of 2 and 2 blocks. Experts stand in {waits.LAYERS}, in none of the dense model.")  # fmt: skip
UPDATE_LIMITS = {"base": 80, "task": 40, "switch": 40}  # for each expert layer


@dataclass(frozen=True)
class Counted:
    """The launches of one layer: forward and backward in training, forward in evaluation."""

    forward: Counter[str]
    backward: Counter[str]
    evaluation: Counter[str]
    views: int
    exchanges: int

    @property
    def training(self) -> Counter[str]:
        return self.forward + self.backward

    def row(self, name: str, dense: Counted) -> list[object]:
        training, evaluation = (self.beyond(dense, is_training) for is_training in (True, False))
        passes = self.forward.total(), self.backward.total()
        return [name, *passes, training, self.views, self.evaluation.total(), evaluation]

    def beyond(self, dense: Counted, training: bool) -> int:
        """Return how many more launches than the dense layer's there are."""
        if training:
            return self.training.total() - dense.training.total()
        return self.evaluation.total() - dense.evaluation.total()


@click.command(context_settings={"show_default": True})
@report_options("Nothing: all numbers are the same.")
def main(small: bool, check: bool, write: bool) -> None:
    """Count the launches of each kind of expert layer, and print tables."""
    report = Report("launches", "What a GPU launches for one expert layer")
    report.text(NOTE)
    for card, (capability, has_triton) in CARDS.items():
        found = {"dense": counted(dense, capability, has_triton)}
        for gate in GATES:
            found |= {f"{gate}, {number} experts": counted_layer(gate, number, card) for number in EXPERTS}
        rows = [each.row(name, found["dense"]) for name, each in found.items()]
        report.table(card[0].upper() + card[1:], COLUMNS, rows)
        if card == next(iter(CARDS)):
            add_figures(report, found)
            show_operations(report, found)
    updates = update_rows()
    report.table("A whole update, capability 9, Triton", UPDATE_COLUMNS, updates, UPDATE_NOTE)
    for model, _, _, more, _ in updates[1:]:
        report.figure(
            f"{model}, an update: launches beyond dense for each expert layer", more, Floor(UPDATE_LIMITS[model])
        )
    several = run_processes(in_a_process, 2)[0]
    columns = ("layer", "forward", "backward", "exchanges", "evaluation")
    rows = [[name, *each] for name, each in several.items()]
    report.table("Two processes, capability 9, Triton", columns, rows, "BASE shuffles its tokens in training.")
    report.finish(write, check)


def add_figures(report: Report, found: dict[str, Counted]) -> None:
    """Each gate beyond the dense layer; and that the number of experts changes nothing."""
    for gate, limits in LIMITS.items():
        for training, limit in zip((True, False), limits, strict=True):
            name = f"{gate}, {'training' if training else 'evaluation'}"
            few, many = (found[f"{gate}, {number} experts"].beyond(found["dense"], training) for number in EXPERTS)
            report.figure(f"{name}: launches beyond the dense layer's", float(few), Floor(limit))
            report.figure(f"{name}: more with {EXPERTS[1]} experts than with {EXPERTS[0]}", float(many - few), Floor(0))


def show_operations(report: Report, found: dict[str, Counted]) -> None:
    rows = []
    for name in ("dense", *(f"{gate}, {EXPERTS[0]} experts" for gate in GATES)):
        for title in ("forward", "backward", "evaluation"):
            launches: Counter[str] = getattr(found[name], title)
            rows.append([f"{name}: {title}", launches.total(), as_words(launches)])
    report.table("Which operations", ("pass", "launches", "the most frequent"), rows)


def dense() -> tuple[nn.Module, Callable[..., Any]]:
    """Return the dense layer, and what calls it as an expert layer is called."""
    module = nn.Sequential(nn.Linear(H, F), nn.ReLU(), nn.Linear(F, H))
    return module, lambda hidden, *others: module(hidden)


def sparse(gate: str, num_experts: int) -> tuple[nn.Module, Callable[..., Any]]:
    """Return an expert layer in the midst of training: running prices are known, and batches have padding."""
    placement, counts = place_experts(num_experts), TokenCounts()
    settings = {"routing": BaseRouting()} if gate == "base" else {}
    experts = ExpertBank(num_experts, H, F, placement=placement)
    layer = MoELayer(build_gate(gate, num_experts, H, TASKS, **settings), experts)
    for prices in running_prices(layer):
        prices.record(torch.zeros(num_experts), torch.ones(()))
        remember_prices([prices])
    if isinstance(layer.gate, BaseGate) and placement.group is not None:
        layer.gate.shuffle = TokenShuffle(placement)
        counts.among(placement.group, LENGTH * SENTENCES, torch.device("cpu"), layer.comm)
    return layer, lambda *inputs: layer(*inputs, counts)


def counted_layer(gate: str, num_experts: int, card: str) -> Counted:
    return counted(lambda: sparse(GATES[gate], num_experts), *CARDS[card])


def counted(
    make: Callable[[], tuple[nn.Module, Callable[..., Any]]], capability: tuple[int, int], has_triton: bool
) -> Counted:
    """Count the launches of a layer in bfloat16, gradients kept from nothing before."""
    torch.manual_seed(0)
    module, call = make()
    with pretended_gpu(capability):
        module.to("cuda", torch.bfloat16)
        x = torch.randn(LENGTH, SENTENCES, H).to("cuda", torch.bfloat16)
        padding = (torch.arange(LENGTH * SENTENCES).view(LENGTH, SENTENCES) % 7 == 6).cuda()
        tasks = (torch.arange(SENTENCES) % TASKS).cuda()
        # The residual stream and what the experts read are two tensors, as in a block.
        hidden, branch = (x.clone().requires_grad_() for _ in range(2))
        outputs: list[torch.Tensor] = []
        forward = count(lambda: outputs.append(call(hidden, branch, padding, tasks)), has_triton)
        gradient = torch.randn(LENGTH, SENTENCES, H).to("cuda", torch.bfloat16)
        # Switch's loss has a gradient of its own.
        losses = [loss for loss in [getattr(module, "last_balance_loss", None)] if loss is not None]
        ends = [outputs.pop(), *losses], [gradient, *map(torch.ones_like, losses)]
        backward = count(lambda: torch.autograd.backward(*ends), has_triton)
        module.eval()
        with torch.no_grad():
            evaluation = count(lambda: call(x, x, padding, tasks), has_triton)
    exchanges = forward.exchanges + backward.exchanges
    views = forward.views + backward.views
    return Counted(forward.launches, backward.launches, evaluation.launches, views, exchanges)


def update_rows() -> list[tuple[str, int, int, float, int]]:
    """Count the second update of each model: the first does more."""
    found = {}
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory() as folder:
        data = make_digit_corpus(Path(folder, "data"))
        for model in ("dense", *GATES.values()):
            found[model] = counted_update(data, Path(folder, model), model)
    logging.disable(logging.NOTSET)
    dense = found["dense"].total
    more = {model: one.total - dense for model, one in found.items()}
    return [(model, one.total, more[model], more[model] / waits.LAYERS, one.views) for model, one in found.items()]


def counted_update(data: Path, folder: Path, model: str) -> LaunchCounter:
    """Count what one update of fairseq's trainer launches."""
    from tests.helpers.trainers import groups_of

    waits.prepare()
    with pretended_gpu(CARDS[next(iter(CARDS))][0]):
        trainer = waits.gpu_trainer(data, folder, model, "bfloat16")
        first, second = groups_of(trainer, 2)
        trainer.train_step(first)
        return count(lambda: trainer.train_step(second), has_triton=True)


def in_a_process(rank: int) -> dict[str, list[int]]:
    """Count in one of several processes: forward, backward, exchanges of both, evaluation."""
    found = {}
    for gate in GATES:
        one = counted_layer(gate, EXPERTS[0], next(iter(CARDS)))
        totals = one.forward.total(), one.backward.total(), one.exchanges, one.evaluation.total()
        found[f"{gate}, {EXPERTS[0]} experts"] = list(totals)
    return found


if __name__ == "__main__":
    main()
