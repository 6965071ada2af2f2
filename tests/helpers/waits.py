"""How often the host waits for a GPU: counted in layers and in updates, as docs/concepts/communication.md says it.

`python -m tests.helpers.waits` counts again and writes the tables there; `tests/gpu/test_waits.py` compares.
"""

from __future__ import annotations

import itertools
import logging
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from fairseq_mtmoe.io.tables import markdown_table
from tests.helpers.pretended_gpu import GpuRules, pretended_gpu

DOCUMENT = Path(__file__).parents[2] / "docs" / "concepts" / "communication.md"
N, H, F, TASKS = 4, 16, 32, 3
GATES = ("base", "switch", "task")
TYPES = (("bfloat16", (9, 0)), ("bfloat16", (8, 0)), ("float16", (9, 0)), ("float32", (9, 0)))
MODELS = ("dense", "base", "task")
LAYERS = 4  # with experts, in the models whose updates are counted


# ---- one layer ----


def layer_waits(gate: str, dtype: str, capability: tuple[int, int], training: bool, **expert_options: Any) -> int:
    """How often the host waits in one expert layer, forward and, in training, backward; one process or each of several.

    In several processes BASE shuffles its tokens; the numbers of tokens, which a stack asks for once, are known.
    """
    from fairseq_mtmoe.moe import ExpertBank, MoELayer, build_gate
    from fairseq_mtmoe.moe.gates import BaseGate
    from fairseq_mtmoe.moe.parallel.placement import place_experts
    from fairseq_mtmoe.moe.parallel.token_shuffle import TokenCounts, TokenShuffle

    torch.manual_seed(0)
    placement = place_experts(N)
    layer = MoELayer(build_gate(gate, N, H, TASKS), ExpertBank(N, H, F, placement=placement, **expert_options))
    counts = TokenCounts()
    if isinstance(layer.gate, BaseGate) and placement.is_sharded:
        layer.gate.shuffle = TokenShuffle(placement)
        counts.among(placement.group, 30, torch.device("cpu"), layer.comm)
    with pretended_gpu(capability) as rules:
        layer.to("cuda", getattr(torch, dtype)).train(training)
        hidden = torch.randn(10, 3, H).to("cuda", getattr(torch, dtype)).requires_grad_(training)
        padding, tasks = (torch.arange(30).view(10, 3) % 7 == 6).cuda(), (torch.arange(3) % TASKS).cuda()
        rules.waits.clear()
        output = layer(hidden, hidden, padding, tasks, counts)
        if training:
            output.sum().backward()
            assert all(parameter.grad.is_cuda for parameter in layer.parameters())
        return len(rules.waits)


def all_layers_wait(rank: int = 0) -> dict[tuple[Any, ...], int]:
    cases = [(gate, *kind, training) for gate in GATES for kind in TYPES for training in (True, False)]
    return {case: layer_waits(*case) for case in cases}


# ---- an update ----


def prepare() -> None:
    """Import what compiles its functions when it is imported: not with pretended ones."""
    import fairseq_cli.train  # noqa: F401

    import tests.helpers.trainers  # noqa: F401


def gpu_trainer(data: Path, save_dir: Path, model: str, dtype: str, *options: object) -> Any:
    """fairseq's trainer of a 2+2-block model, `dense` or with experts of these gates, on a GPU."""
    from tests.helpers.trainers import trainer_here

    arch = ("--arch", "base_dense_tiny") if model == "dense" else ("--expert-gates", model)
    # The buckets of torch's own data parallelism are made where nobody can say that they are on a GPU.
    several = ("--ddp-backend", "legacy_ddp") if dist.is_initialized() else ()
    options = ("--criterion", "moe_label_smoothed_cross_entropy", "--optimizer", "fused_adam", *several, *options)
    types = {"float32": {}, "float16": {"common__fp16": True}, "bfloat16": {"common__bf16": True}}
    return trainer_here(data, save_dir, *arch, *options, common__cpu=False, **types[dtype])


def update_waits(data: Path, save_dir: Path, model: str) -> Counter[str]:
    """Whom the host waits for in an update in bfloat16: `fairseq`, `fairseq_mtmoe`, `layers`."""
    from tests.helpers.trainers import groups_of

    prepare()
    with pretended_gpu() as rules:
        trainer = gpu_trainer(data, save_dir, model, "bfloat16")
        for group in groups_of(trainer, 2):  # the first does more
            rules.waits.clear()
            assert trainer.train_step(group)["loss"] > 0
        assert all(parameter.is_cuda for parameter in trainer.get_model().parameters())
        return who_waits(rules)


def who_waits(rules: GpuRules) -> Counter[str]:
    found: Counter[str] = Counter()
    for _, line in rules.waits:
        package, _, path = line.partition("/")
        found["layers" if path.startswith("moe/") else package] += 1
    return found


def all_updates_wait(rank: int, data: Path, folder: Path) -> dict[str, Counter[str]]:
    logging.disable(logging.INFO)
    try:
        return {model: update_waits(data, folder / model, model) for model in MODELS}
    finally:
        logging.disable(logging.NOTSET)


# ---- the tables ----


def tables() -> dict[str, str]:
    from tests.helpers.digits import make_digit_corpus
    from tests.helpers.processes import run_processes

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = make_digit_corpus(folder / "data", train=100)
        several = run_processes(all_updates_wait, 2, data, folder / "several")[0]
        updates = update_table([all_updates_wait(0, data, folder / "alone"), several])
    return {"layers": layer_table(all_layers_wait(), run_processes(all_layers_wait, 2)[0]), "updates": updates}


def layer_table(alone: dict[tuple[Any, ...], int], several: dict[tuple[Any, ...], int]) -> str:
    head = ["gate", "type", "training", "evaluation", "training, several", "evaluation, several"]
    rows = []
    for gate in GATES:
        for title, kinds in (("bfloat16, capability 9 or 10", TYPES[:1]), ("others", TYPES[1:])):
            rows.append([gate, title])
            for counts, training in itertools.product((alone, several), (True, False)):
                (count,) = {counts[gate, *kind, training] for kind in kinds}
                rows[-1].append(str(count))
    return markdown_table(head, rows, [0, 1])


def update_table(updates: Sequence[dict[str, Counter[str]]]) -> str:
    plugins = "the plugin's stacks, loss and trainer"
    who = {"fairseq": "fairseq", "fairseq_mtmoe": plugins, "layers": f"{LAYERS} expert layers"}
    head = ["model", *who.values(), *(f"{title}, several" for title in who.values())]
    rows = [[model, *(str(each[model][name]) for each in updates for name in who)] for model in MODELS]
    return markdown_table(head, rows, [0])


def marked(name: str) -> re.Pattern[str]:
    return re.compile(f"(<!-- {name} begin -->\n)(.*?)(\n<!-- {name} end -->)", re.DOTALL)


if __name__ == "__main__":
    text = DOCUMENT.read_text()
    for name, table in tables().items():
        text = marked(name).sub(lambda found, table=table: found[1] + table + found[3], text)
    DOCUMENT.write_text(text)
