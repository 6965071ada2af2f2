"""Plans of each block's experts, from a model's options."""

from collections.abc import Mapping
from itertools import cycle
from typing import Any

from fairseq_mtmoe.core.errors import UserError, flag, raise_invalid
from fairseq_mtmoe.core.options import check_rules, names_of_tasks, value_of
from fairseq_mtmoe.moe.gates import GATES, FixedGate, Gate
from fairseq_mtmoe.slots.expert_slot import ExpertPlan
from fairseq_mtmoe.slots.options import ExpertOptions, RunOptions


def check_experts(cfg: Any, kinds: Mapping[str, type[Gate]] = GATES) -> None:
    """Check the `ExpertOptions` (UserError: the first one that is out of range).

    kinds: the system's gates by name.
    """
    check_rules(cfg, ExpertOptions)
    gates = cfg.expert_gates.split(",")
    if any(gate not in kinds for gate in gates):
        rule = f"one of {', '.join(kinds)}, or a comma-separated pattern of them"
        raise_invalid("--expert-gates", rule, cfg.expert_gates)
    tasks = names_of_tasks(cfg)
    if any(kinds[gate].needs_tasks for gate in gates) and not tasks:
        raise UserError(
            f"`--expert-gates {cfg.expert_gates}` requires a task that gives each sentence a task "
            "id, such as `--task translation_heated`."
        )
    if any(issubclass(kinds[gate], FixedGate) for gate in gates) and cfg.num_experts < len(tasks):
        names = ", ".join(tasks)
        rule = f"at least {len(tasks)} with fixed gates, one for each of the tasks {names}"
        raise_invalid("--num-experts", rule, cfg.num_experts)


def check_blocks(cfg: Any) -> None:
    """Check the options of a transformer with experts (UserError)."""
    for name in ("cross_self_attention", "quant_noise_pq", "base_layers"):
        if getattr(cfg, name, False):
            raise UserError(f"`{flag(name)}` cannot be combined with experts.")
    if min(cfg.encoder_layers, cfg.decoder_layers) < cfg.expert_interval:
        raise_invalid(
            "--expert-interval", "at most the number of blocks of either stack", cfg.expert_interval
        )


def plan_experts(
    cfg: Any,
    num_blocks: int,
    kinds: Mapping[str, type[Gate]] = GATES,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[int, ExpertPlan]:
    """Return the plans of every `expert_interval`-th block, with gates by the pattern.

    settings: additional arguments of gates, by the name of their kind; those of BASE are options.
    """
    gates = cfg.expert_gates.split(",")
    base = {
        "evaluation": value_of(cfg, ExpertOptions, "base_evaluation"),
        "memory": value_of(cfg, ExpertOptions, "price_memory"),
    }
    settings_by_kind = {"base": base, **(settings or {})}
    indices = range(cfg.expert_interval - 1, num_blocks, cfg.expert_interval)
    return {
        index: ExpertPlan(
            gate=kinds[kind],
            num_experts=cfg.num_experts,
            combine=cfg.expert_combine,
            num_tasks=len(names_of_tasks(cfg)),
            starts_dense=cfg.dense_updates > 0,
            settings=settings_by_kind.get(kind, {}),
            shuffles_tokens=not value_of(cfg, RunOptions, "no_token_shuffle"),
            timeout=value_of(cfg, RunOptions, "distributed_timeout"),
            dropout=value_of(cfg, ExpertOptions, "expert_dropout"),
        )
        for index, kind in zip(indices, cycle(gates), strict=False)
    }
