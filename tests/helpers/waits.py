"""How often the host waits for a pretended GPU, and fairseq's trainer on one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from tests.helpers.pretended_gpu import pretended_gpu

N, H, F, TASKS = 4, 16, 32, 3
GATES = ("base", "switch", "task")
TYPES = (("bfloat16", (9, 0)), ("bfloat16", (8, 0)), ("float16", (9, 0)), ("float32", (9, 0)))


# ---- one layer ----


def layer_waits(gate: str, dtype: str, capability: tuple[int, int], training: bool, **expert_options: Any) -> int:
    """How often the host waits in one expert layer, forward and, in training, backward, in this process."""
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
