"""Checks of a run's options: changed defaults, and unsupported values."""

import dataclasses
import math
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.configs import FairseqConfig
from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import OmegaConf, open_dict
from torch import nn

from fairseq_mtmoe.core.errors import UserError, flag, raise_invalid
from fairseq_mtmoe.core.options import check_rules
from fairseq_mtmoe.core.protocols import training_model
from fairseq_mtmoe.slots import expert_slots
from fairseq_mtmoe.slots.slot import unwrapped

Options = dict[str, Any]  # plain values by name, as on the command line

BACKENDS = ("pytorch_ddp", "c10d", "legacy_ddp", "no_c10d")
_NOT_OF_TRAINING = ("interactive", "generation", "eval_lm", "common_eval", "scoring")
# ---- options that are not the default ----


def changed_options(cfg: Any) -> dict[str, Any]:
    """Return a run's options that are not the defaults, by name with underscores.

    Options set by an architecture are among them. A default that refers to another option counts as
    that option's.
    """
    changed: dict[str, Any] = {}
    for group in cfg:
        if group in _NOT_OF_TRAINING:
            continue
        chosen = getattr(cfg[group], "_name", None)
        if chosen is not None:
            changed.setdefault("arch" if group == "model" else group, chosen)
        defaults = vars(_options_class(group, chosen)())
        for name, value in _options_of(cfg[group]):
            default = defaults.get(name)
            refers = isinstance(default, str) and default.startswith("${")
            if value is not None and not refers and value != default and str(value) != str(default):
                changed.setdefault(name, _plain(value))
    return changed


def _options_of(options: Any) -> Iterator[tuple[str, Any]]:
    """Yield a group's options as plain values; nested names have dots."""
    if OmegaConf.is_config(options):
        options = OmegaConf.to_container(options, resolve=True, enum_to_str=True)
    if isinstance(options, Namespace):
        options = vars(options)
    if isinstance(options, Mapping):
        yield from _leaves({name: value for name, value in options.items() if name != "_name"})


def _leaves(values: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{at}{name}.")
        else:
            yield at + name, value


def _options_class(group: str, chosen: str | None) -> Any:
    """Return the dataclass of a group's options; one without fields if there is none."""
    kind: Any
    if chosen is None:
        kind = getattr(FairseqConfig.__dataclass_fields__.get(group), "type", None)
    elif group == "model":
        kind = MODEL_DATACLASS_REGISTRY.get(ARCH_MODEL_NAME_REGISTRY.get(chosen, chosen))
    elif group == "task":
        kind = TASK_DATACLASS_REGISTRY.get(chosen)
    else:
        kind = REGISTRIES.get(group, {}).get("dataclass_registry", {}).get(chosen)
    return kind if dataclasses.is_dataclass(kind) else FairseqDataclass


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: a number, a list of plain values, or a string."""
    if isinstance(value, list) and all(
        isinstance(element, bool | int | float | str) for element in value
    ):
        return value
    return value if isinstance(value, bool | int | float) else str(value)


@contextmanager
def with_option(options: Any, name: str, value: Any) -> Iterator[None]:
    """Set one of fairseq's options inside the context."""
    with open_dict(options):
        before = options[name]
        options[name] = value
        try:
            yield
        finally:
            options[name] = before


# ---- unsupported options ----


def will_exchange(model: nn.Module, world_size: int) -> bool:
    """Return whether experts are or will be sharded over several ranks."""
    return any(
        math.gcd(slot.plan.num_experts, world_size) > 1 for slot in expert_slots(model).values()
    )


def is_flat(common: Any) -> bool:
    """Return whether fairseq's optimizer keeps all parameters in one float32 vector."""
    in_place = common.memory_efficient_fp16 or common.memory_efficient_bf16
    return bool(common.fp16 and not in_place and not common.fp16_no_flatten_grads)


def check_options(cfg: Any, model: nn.Module) -> None:
    """Refuse options that cannot work (UserError)."""
    for group in ("model", "task", "criterion"):
        check_rules(cfg[group], _options_class(group, getattr(cfg[group], "_name", None)))
    for group in cfg:
        if group in _NOT_OF_TRAINING:
            continue
        # `float` reads "nan" and "inf", and no later check sees NaN.
        for name, value in _options_of(cfg[group]):
            numbers = value if isinstance(value, list) else [value]
            if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
                raise_invalid(flag(name), "a finite number", value)
    refuse_what_cannot_work(cfg, model)


def refuse_what_needs_cuda(cfg: Any) -> None:
    """Raise a `UserError` for options that need a GPU, if there is none."""
    if torch.cuda.is_available():
        return
    if is_flat(cfg.common):  # fairseq keeps this vector on a GPU
        raise UserError(
            "`--fp16` requires a GPU, and this machine has none; leave it out, or give `--bf16`."
        )
    distributed = cfg.distributed_training
    backend = distributed.ddp_backend
    if backend in ("slowmo", "fully_sharded") and distributed.distributed_world_size > 1:
        raise_invalid(
            "--ddp-backend", f"one of {', '.join(BACKENDS)} on a machine without CUDA", backend
        )


def refuse_full_sharding(cfg: Any) -> None:
    """Refuse `--ddp-backend fully_sharded` with our models and uncertainty sampling.

    fairscale keeps parameters and moments in shards of one vector without names, while experts,
    gates and frozen parameters are found by name.
    """
    backend = cfg.distributed_training.ddp_backend
    if backend != "fully_sharded":
        return
    is_by_uncertainty = getattr(cfg.task, "sampling_method", None) == "uncertainty"
    if hasattr(cfg.model, "max_nonfinite") or is_by_uncertainty:
        raise_invalid(
            "--ddp-backend",
            f"one of {', '.join(BACKENDS)} with models and sampling of fairseq_mtmoe",
            backend,
        )


def refuse_what_cannot_work(cfg: Any, model: nn.Module) -> None:
    """Raise a `UserError` for options that exclude experts or `--dense-updates`."""
    # fairseq's model-parallel trainer reads checkpoints differently.
    if cfg.common.model_parallel_size > 1:
        raise_invalid(
            "--model-parallel-size",
            "1 with this plugin",
            cfg.common.model_parallel_size,
        )
    options = cfg.checkpoint
    if options.keep_best_checkpoints > 0 and "_" in options.checkpoint_suffix:
        rule = "without `_` with `--keep-best-checkpoints`, since fairseq reads a score after it"
        raise_invalid("--checkpoint-suffix", rule, options.checkpoint_suffix)
    distributed = cfg.distributed_training
    # One vector cannot be sharded by parameter.
    if distributed.zero_sharding == "os" and is_flat(cfg.common):
        raise UserError(
            "`--fp16-no-flatten-grads` is required with `--fp16` and `--zero-sharding os`."
        )
    exchanges = will_exchange(model, distributed.distributed_world_size)
    will_be_sparse = training_model(unwrapped(model)).dense_updates
    if distributed.zero_sharding != "none" and (exchanges or will_be_sparse):
        rule = "none with `--dense-updates` or experts in several processes"
        raise_invalid("--zero-sharding", rule, distributed.zero_sharding)
    if exchanges:
        _refuse_with_exchange(cfg)


def _refuse_with_exchange(cfg: Any) -> None:
    where = "with experts in several processes"
    distributed = cfg.distributed_training
    if distributed.ddp_backend not in BACKENDS:
        raise_invalid(
            "--ddp-backend", f"one of {', '.join(BACKENDS)} {where}", distributed.ddp_backend
        )
    for name in ("encoder_layerdrop", "decoder_layerdrop"):
        if value := getattr(cfg.model, name, 0.0):
            raise_invalid(flag(name), f"0 {where}, which would wait for each other's layers", value)
    # The search of our task waits for other ranks.
    scores = getattr(cfg.task, "eval_bleu", False) and "eval_chrf" not in cfg.task
    for name, is_on, why in (
        ("use_bmuf", cfg.optimization.use_bmuf, ", which make each update together"),
        ("tpu", cfg.common.tpu, ""),
        ("pipeline_model_parallel", distributed.pipeline_model_parallel, ""),
        (
            "eval_bleu",
            scores,
            ", which would wait for each other's sentences; `mtmoe evaluate` scores the "
            "checkpoints",
        ),
        ("amp", cfg.common.amp, ", whose loss scales would differ; use `--fp16` or `--bf16`"),
    ):
        if is_on:
            raise UserError(f"`{flag(name)}` cannot be used {where}{why}.")
