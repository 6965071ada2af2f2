"""What cannot work while experts are in several processes, said at the start in one sentence each.

Processes that exchange tokens must make the same steps in the same order: whatever lets one of them skip a layer or go
its own way for some updates would leave the others waiting.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import torch
from torch import nn

from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.protocols import BecomesSparse
from fairseq_mtmoe.slots import expert_layers, expert_slots
from fairseq_mtmoe.slots.slot import unwrapped

logger = logging.getLogger(__name__)

BACKENDS = ("pytorch_ddp", "c10d", "legacy_ddp", "no_c10d")


def will_exchange(model: nn.Module, world_size: int) -> bool:
    """Whether experts are, or will be after the dense updates, in other processes than this one."""
    return any(math.gcd(slot.plan.num_experts, world_size) > 1 for slot in expert_slots(model).values())


def refuse_full_sharding(cfg: Any) -> None:
    """Refuse `--ddp-backend fully_sharded` before a model is built, where fairscale's wrapper cannot do it.

    It spreads each parameter over all processes, which take it to be the same in all of them, and it computes with
    CUDA's streams even where there is no GPU. Experts in wrappers of their own would train all right, but a checkpoint
    needs their parameters and moments by name, and the wrapper keeps both as shards of one nameless vector. All of
    that vector trains, or none of it. Its parts are whole only in a training step, not where candidates pass before.

    Raises:
        UserError: the model has experts that other processes do not have, or a frozen part; uncertainty sampling
            chooses what trains; or there is no GPU.
    """
    distributed = cfg.distributed_training
    if distributed.ddp_backend != "fully_sharded":
        return
    num_experts = getattr(cfg.model, "num_experts", 1)
    if math.gcd(num_experts, distributed.distributed_world_size) > 1:
        _refuse_back_end(distributed, "with experts in several processes")
    if getattr(cfg.task, "sampling_method", None) == "uncertainty":
        _refuse_back_end(distributed, "with `--sampling-method uncertainty`")
    frozen = getattr(cfg.model, "freeze_layers", "0")
    if str(frozen) != "0":
        _refuse_back_end(distributed, f"with `--freeze-layers {frozen}`")
    if hasattr(cfg.model, "pemt_stage"):
        _refuse_back_end(distributed, "with `--pemt-stage`, which leaves most parameters as they are")
    if getattr(cfg.model, "gate_lr_factor", None) not in (None, 1):
        _refuse_back_end(distributed, "with `--gate-lr-factor`, which must find the gates among the parameters")
    if not torch.cuda.is_available():
        _refuse_back_end(distributed, "on a machine without CUDA")


def refuse_what_cannot_work(cfg: Any, model: nn.Module) -> None:
    """Check fairseq's options against a model's experts.

    Raises:
        UserError: an option cannot work, in several processes or with `--dense-updates`; or fairseq would take its
            trainer of parts of a model, which reads checkpoints in a way of its own.
    """
    if cfg.common.model_parallel_size > 1:
        raise_invalid("--model-parallel-size", "1 with `--user-dir fairseq_mtmoe`", cfg.common.model_parallel_size)
    distributed = cfg.distributed_training
    sparse = unwrapped(model)  # a Protocol does not look through a wrapper's `__getattr__`
    if isinstance(sparse, BecomesSparse) and sparse.dense_updates:
        if distributed.zero_sharding != "none":
            raise_invalid("--zero-sharding", "none with `--dense-updates`", distributed.zero_sharding)
        if distributed.ddp_backend == "fully_sharded":
            _refuse_back_end(distributed, "with `--dense-updates`")
    if will_exchange(model, distributed.distributed_world_size):
        _refuse_back_ends(cfg)
        _refuse_options(cfg)


def warn_of_what_does_nothing(cfg: Any, model: nn.Module) -> None:
    """Say which options are given and change nothing."""
    weight = getattr(cfg.criterion, "load_balancing_weight", 0.0)
    if weight and not any(slot.plan.gate.balances for slot in expert_slots(model).values()):
        logger.warning(
            f"--load-balancing-weight {weight} changes nothing: no layer of the model has a Switch gate "
            "(--expert-gates switch)"
        )
    ratio, layers = getattr(cfg.model, "expert_reinit_ratio", 0.0), expert_layers(model).values()
    if ratio and layers and all(layer.experts.reinitialized is None for layer in layers):
        logger.warning(
            f"--expert-reinit-ratio {ratio} changes nothing: the experts of this run do not begin as copies of "
            "feed-forward layers (--dense-updates, or mtmoe upcycle --expert-reinit-ratio)"
        )
    criterion = getattr(cfg.criterion, "_name", None)
    if getattr(cfg.model, "pemt_sources", "") and criterion != "pemt":
        logger.warning(
            f"--criterion {criterion} has no task sparsity loss, which is part of PEMT with sources (--criterion pemt)"
        )


def _refuse_back_end(distributed: Any, where: str) -> None:
    raise_invalid("--ddp-backend", f"one of {', '.join(BACKENDS)} {where}", distributed.ddp_backend)


def _refuse_back_ends(cfg: Any) -> None:
    distributed = cfg.distributed_training
    if distributed.ddp_backend not in BACKENDS:
        _refuse_back_end(distributed, "with experts in several processes")
    if cfg.optimization.use_bmuf:
        raise UserError("`--use-bmuf` must be off with experts in several processes, which make each update together.")
    if cfg.common.tpu or distributed.pipeline_model_parallel:
        name = "--tpu" if cfg.common.tpu else "--pipeline-model-parallel"
        raise UserError(f"`{name}` must be off with experts in several processes.")


def _refuse_options(cfg: Any) -> None:
    for name in ("encoder_layerdrop", "decoder_layerdrop"):
        value = getattr(cfg.model, name, 0.0)
        if value:
            option = f"--{name.replace('_', '-')}"
            raise_invalid(
                option, "0 with experts in several processes, which would wait for each other's layers", value
            )
    if getattr(cfg.task, "eval_bleu", False) and "eval_chrf" not in cfg.task:  # our task's search waits for others
        raise UserError(
            "`--eval-bleu` must be off with experts in several processes, each of which would write sentences of other "
            "lengths and wait for the others; `mtmoe evaluate` scores the checkpoints."
        )
    if cfg.common.amp:
        raise UserError(
            "`--amp` must be off with experts in several processes, whose loss scales would differ; use `--fp16` or "
            "`--bf16`."
        )
