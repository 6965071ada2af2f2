"""From a model's options to the experts of each block."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import cycle
from typing import Any

from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.moe import BaseRouting
from fairseq_mtmoe.moe.gates import EVALUATIONS, GATES, TRAININGS, FixedGate, Gate
from fairseq_mtmoe.moe.layer import COMBINES
from fairseq_mtmoe.options import names_of_tasks, value_of
from fairseq_mtmoe.options.experts import ExpertOptions, RunOptions
from fairseq_mtmoe.slots.expert_slot import ExpertPlan


def check_experts(cfg: Any, kinds: Mapping[str, type[Gate]] = GATES) -> None:
    """Raise the `UserError` that names the first of the `ExpertOptions` out of its range.

    Args:
        cfg: with `ExpertOptions`.
        kinds: the gates that the system has, by the names that `--expert-gates` gives them.
    """
    for name, least in (("num_experts", 1), ("expert_interval", 1), ("dense_updates", 0)):
        if getattr(cfg, name) < least:
            raise_invalid(_shown(name), f"at least {least}", getattr(cfg, name))
    choices = {"expert_combine": COMBINES, "base_evaluation": EVALUATIONS, "base_training": TRAININGS}
    for name, known in choices.items():
        if (chosen := value_of(cfg, ExpertOptions, name)) not in known:
            raise_invalid(_shown(name), f"one of {', '.join(known)}", chosen)
    memory = value_of(cfg, ExpertOptions, "price_memory")
    if not isinstance(memory, (int, float)) or not 0 <= memory < 1:
        raise_invalid("--price-memory", "from 0 to below 1", memory)
    factor = value_of(cfg, ExpertOptions, "gate_lr_factor")
    if factor is not None and (not isinstance(factor, (int, float)) or not 0 <= factor < math.inf):
        raise_invalid("--gate-lr-factor", "at least 0, and finite", factor)
    for name in ("expert_reinit_ratio", "expert_dropout"):
        share = value_of(cfg, ExpertOptions, name)
        if share is not None and (not isinstance(share, (int, float)) or not 0 <= share <= 1):
            raise_invalid(_shown(name), "from 0 to 1", share)
    gates = cfg.expert_gates.split(",")
    if any(gate not in kinds for gate in gates):
        raise_invalid(
            "--expert-gates", f"one of {', '.join(kinds)}, or a comma-separated pattern of them", cfg.expert_gates
        )
    if any(kinds[gate].needs_tasks for gate in gates) and not names_of_tasks(cfg):
        raise UserError(
            f"`--expert-gates {cfg.expert_gates}` needs a task that gives each sentence a task id, such as "
            "`--task translation_heated`, but this one gives none."
        )
    tasks = names_of_tasks(cfg)
    if any(issubclass(kinds[gate], FixedGate) for gate in gates) and cfg.num_experts < len(tasks):
        rule = f"at least {len(tasks)} with fixed gates, one for each of the tasks {', '.join(tasks)}"
        raise_invalid("--num-experts", rule, cfg.num_experts)


def check_blocks(cfg: Any) -> None:
    """The same for the options of a transformer around the experts."""
    for name in ("cross_self_attention", "quant_noise_pq", "base_layers"):
        if getattr(cfg, name, False):
            raise_invalid(_shown(name), "off in a model with experts", getattr(cfg, name))
    if min(cfg.encoder_layers, cfg.decoder_layers) < cfg.expert_interval:
        raise_invalid("--expert-interval", "at most the number of blocks of either stack", cfg.expert_interval)


def plan_experts(
    cfg: Any,
    num_blocks: int,
    kinds: Mapping[str, type[Gate]] = GATES,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[int, ExpertPlan]:
    """Which block gets which experts: the last of every `expert_interval` blocks, the gates in the pattern's order.

    Args:
        cfg: with `ExpertOptions` and `RunOptions`.
        num_blocks: of the deepest stack.
        kinds: as in `check_experts`.
        settings: by the kind's name, what its gates are made with beside their sizes; BASE's are among the options.
    """
    gates = cfg.expert_gates.split(",")
    of_kinds = {"base": {"routing": _base_routing(cfg)}, **(settings or {})}
    indices = range(cfg.expert_interval - 1, num_blocks, cfg.expert_interval)
    return {
        index: ExpertPlan(
            gate=kinds[kind],
            num_experts=cfg.num_experts,
            combine=cfg.expert_combine,
            num_tasks=len(names_of_tasks(cfg)),
            starts_dense=cfg.dense_updates > 0,
            settings=of_kinds.get(kind, {}),
            shuffles_tokens=not value_of(cfg, RunOptions, "no_token_shuffle"),
            timeout=value_of(cfg, RunOptions, "distributed_timeout"),
            reinit_ratio=value_of(cfg, ExpertOptions, "expert_reinit_ratio"),
            dropout=value_of(cfg, ExpertOptions, "expert_dropout"),
            shared_size=value_of(cfg, ExpertOptions, "shared_expert_dim"),
        )
        for index, kind in zip(indices, cycle(gates), strict=False)
    }


def _base_routing(cfg: Any) -> BaseRouting:
    names = ("base_training", "base_evaluation", "price_memory")
    return BaseRouting(*(value_of(cfg, ExpertOptions, name) for name in names))


def _shown(name: str) -> str:
    return f"--{name.replace('_', '-')}"
