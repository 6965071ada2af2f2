"""Additions to fairseq's update: experts, gates' rates, non-finite updates.

fairseq's norm excludes parameters with the attribute `expert`. The norm here is over all parameters
of all ranks, so that all ranks skip the same updates. Weights that are not finite are neither saved
nor trained on.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from fairseq.distributed import DistributedTimeoutWrapper, ModuleProxyWrapper
from fairseq.logging import metrics
from fairseq.nan_detector import NanDetector
from fairseq.optim import FairseqBMUF
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import DDPCommHookType, register_ddp_comm_hook
from torch.nn.parallel import DistributedDataParallel

from fairseq_mtmoe.checkpoints.file_io import are_finite, newest_good_in, suggested_fallback
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.moe import ExpertBank, MoELayer
from fairseq_mtmoe.moe.parallel.placement import average_over_replicas
from fairseq_mtmoe.training.failures import several_processes

logger = logging.getLogger(__name__)

MOST_OUT_OF_MEMORY = 10  # steps in a row

_DDP_OPTIONS = (
    "broadcast_buffers",
    "bucket_cap_mb",
    "find_unused_parameters",
    "gradient_as_bucket_view",
)


# ---- skipped updates ----


class SkippedUpdate(Exception):
    """Raised to skip the optimizer's step; a scaler's `OverflowError` may cause it."""


class NonfiniteUpdates:
    """Counts non-finite updates; ends the run after `limit` in a row (0: at once)."""

    def __init__(self, limit: int, save_dir: str) -> None:
        self.limit = limit
        self.save_dir = save_dir
        self.total = self.in_a_row = 0

    def add(self, update: int) -> None:
        """Count a skipped update number `update` (UserError: `limit` in a row)."""
        self.total += 1
        self.in_a_row += 1
        if self.in_a_row >= self.limit:
            times = f"{self.in_a_row} times in a row " if self.in_a_row > 1 else ""
            raise UserError(
                f"The loss or its gradients were not finite {times}at update {update} "
                f"(`--max-nonfinite {self.limit}`): {advice(self.save_dir)}."
            )
        logger.warning(
            f"update {update}: loss or gradients are not finite; skipped this batch ({self.total} "
            "so far)"
        )

    def log(self, passed: bool) -> None:
        """Log the total, if any; an update that `passed` ends a row."""
        if passed:
            self.in_a_row = 0
        if self.total:
            metrics.log_scalar("nonfinite_updates", self.total, weight=0, priority=510, round=0)

    def state_dict(self) -> dict[str, int]:
        """Return the state for a checkpoint."""
        return {"total": self.total, "in_a_row": self.in_a_row}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore a checkpoint's state; fairseq's own has none."""
        self.total = state.get("total", 0)
        self.in_a_row = state.get("in_a_row", 0)


class OutOfMemory:
    """Counts steps without memory; ends the run after 10 in a row.

    It ends the run at once if no process can leave out a step alone.
    """

    def __init__(self) -> None:
        self._update = self._in_a_row = 0

    def add(self, update: int, error: BaseException) -> None:
        """Count a step of update number `update` (UserError: it cannot be left out).

        Other processes would wait for this one's part of their collectives.
        """
        way_out = (
            "lower `--max-tokens` or `--batch-size`, and raise `--update-freq` to keep the size of "
            "an update"
        )
        if several_processes():
            raise UserError(
                f"Process {dist.get_rank()} ran out of memory at update {update}, and no process "
                f"can leave out a batch alone: {way_out}."
            ) from error
        self._in_a_row = self._in_a_row + 1 if update == self._update else 1
        self._update = update
        if self._in_a_row >= MOST_OUT_OF_MEMORY:
            raise UserError(
                f"Update {update} ran out of memory {self._in_a_row} times: {way_out}."
            ) from error


def advice(save_dir: str) -> str:
    """Return advice on a diverged run: options, and a checkpoint to continue from."""
    newest = newest_good_in(save_dir)
    if newest is None:
        rest = "start again; no checkpoint with finite weights was saved"
    elif newest.name == "checkpoint_last.pt":
        rest = f"continue from `{newest}`, saved before"
    else:
        rest = f"continue with `--restore-file {newest}`, the newest checkpoint with finite weights"
    return f"lower `--lr`, raise `--warmup-updates` or set `--clip-norm`, and {rest}"


def expect_finite_weights(trainer: Any, restored: str | None, in_all_processes: bool) -> None:
    """Raise a `UserError` if weights are not finite.

    restored: the checkpoint that they are from; None: they are from the last update.
    """
    is_finite = torch.tensor(
        float(are_finite(trainer.get_model().parameters())), device=trainer.device
    )
    if in_all_processes:
        dist.all_reduce(is_finite, op=dist.ReduceOp.MIN)
    if is_finite:
        return
    if restored is not None:
        raise UserError(
            f"`{restored}` has weights that are not finite, so training would skip every batch; "
            f"use an older checkpoint with `--restore-file`{suggested_fallback(restored)}."
        )
    raise UserError(
        f"The weights are not finite after update {trainer.get_num_updates()}, and are not saved: "
        f"{advice(trainer.cfg.checkpoint.save_dir)}."
    )


def leave_out(
    trainer: Any, skipped: SkippedUpdate, counts: NonfiniteUpdates | None, samples: list[Any]
) -> None:
    """Clean up after a skipped update, and count it (UserError: too many in a row)."""
    optimizer = trainer.optimizer
    optimizer.zero_grad()
    if getattr(optimizer, "scaler", None) is None and hasattr(optimizer, "_multiply_factor"):
        # Half precision without a scaler keeps a factor for the cleared gradients.
        optimizer._multiply_factor = 1.0
    metrics.log_stop_time("train_wall")
    if skipped.__cause__ is not None:
        logger.info(f"NOTE: gradient overflow detected, ignoring gradient, {skipped.__cause__}")
        metrics.log_scalar(
            "loss_scale", optimizer.scaler.loss_scale, priority=700, round=4, weight=0
        )
        return
    assert counts is not None
    if counts.limit == 0:
        log_nonfinite_modules(trainer, samples)
    counts.add(trainer.get_num_updates() + 1)


def log_nonfinite_modules(trainer: Any, samples: list[Any]) -> None:
    """Log the modules with non-finite outputs, as fairseq does.

    fairseq's search in the backward pass does not work with our outputs.
    """
    trainer._set_seed()
    parts = trainer.model, trainer.criterion, trainer.optimizer, trainer.get_num_updates()
    with NanDetector(trainer.get_model(), backward=False):
        for sample in samples:
            trainer.task.train_step(trainer._prepare_sample(sample)[0], *parts)


def show_in_gradients(criterion: nn.Module, inputs: Any, output: Any) -> None:
    """Make gradients non-finite if the loss is: a forward hook of the criterion.

    A sum over examples may hide a loss that is not finite.
    """
    loss = output[0]
    if isinstance(loss, Tensor) and loss.requires_grad:
        poison = (loss.detach() * 0).sum()  # 0, or NaN
        loss.register_hook(lambda grad: grad + poison.to(grad.dtype))


# ---- experts' gradients ----


def clip_all(optimizer: Any, banks: Sequence[ExpertBank], max_norm: float) -> Tensor:
    """Average expert gradients over replicas, and clip all gradients.

    max_norm: the limit of the norm; 0: no clipping. It reads the model's own gradients, which
    fairseq's half-precision optimizers have not yet copied to float32. Returns their norm over all
    ranks, without fairseq's scales. `banks` are this rank's sharded experts.
    """
    placement = banks[0].placement
    experts = [
        parameter for bank in banks for parameter in bank.parameters() if parameter.requires_grad
    ]
    for parameter in experts:
        if parameter.grad is None:  # every replica must contribute each gradient
            parameter.grad = torch.zeros_like(parameter)
    average_over_replicas(gradients_of(experts), placement)
    local = set(experts)
    shared = None  # the shared parameters, if fairseq cannot compute their norm
    if getattr(optimizer, "has_flat_params", False):
        shared = [parameter for parameter in optimizer.fp16_params if parameter not in local]

    def norm_of_all(shared_norm: Tensor) -> Tensor:
        if shared is not None:
            shared_norm = sum_of_squares(shared).sqrt().to(shared_norm)
        squared = sum_of_squares(experts).to(shared_norm)
        dist.all_reduce(squared, group=placement.group)
        return (shared_norm.square() + squared).sqrt()

    norm: Tensor = optimizer.clip_grad_norm(max_norm, aggregate_norm_fn=norm_of_all)
    return norm


def sum_of_squares(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Return the sum of squares of all gradients, in float32."""
    gradients = gradients_of(parameters) or [torch.zeros(())]
    return torch.stack(torch._foreach_norm(gradients, 2, dtype=torch.float32)).square().sum()


def gradients_of(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """Return the parameters' gradients that exist."""
    return [parameter.grad.detach() for parameter in parameters if parameter.grad is not None]


def clip_on_cpu(optimizer: Any, max_norm: float, aggregate_norm_fn: Any = None) -> Tensor:
    """Clip gradients as fairseq's `clip_grad_norm` does, but never through a GPU.

    The norm excludes experts, as in fairseq.
    """
    parameters = list(optimizer.params)
    shared = gradients_of(parameter for parameter in parameters if not hasattr(parameter, "expert"))
    if not shared:
        return torch.tensor(0.0)
    norms = [torch.norm(gradient, p=2, dtype=torch.float32) for gradient in shared]
    norm: Tensor = torch.stack(norms).norm()
    if aggregate_norm_fn is not None:
        norm = aggregate_norm_fn(norm)
    if max_norm > 0:
        torch._foreach_mul_(gradients_of(parameters), (max_norm / (norm + 1e-6)).clamp_(max=1))
    return norm


# ---- fairseq's wrappers ----


def unwrapped_optimizer(optimizer: Any) -> Any:
    """Return the optimizer inside fairseq's wrappers."""
    if isinstance(optimizer, FairseqBMUF):
        optimizer = optimizer._optimizer
    return getattr(optimizer, "fp32_optimizer", getattr(optimizer, "wrapped_optimizer", optimizer))


def each_optimizer(optimizer: Any) -> list[Any]:
    """Return a fairseq optimizer, or those of which its `composite` is made."""
    return list(getattr(optimizer.optimizer, "optimizers", {"": optimizer}).values())


def data_parallel_on_cpu(trainer: Any, module: nn.Module) -> Any:
    """Return a CPU module in torch's DDP with fairseq's options, or None on a GPU.

    fairseq would name a GPU for it.
    """
    options = trainer.cfg.distributed_training
    group = trainer.data_parallel_process_group
    by_torch = options.ddp_backend in ("c10d", "pytorch_ddp") and trainer.use_distributed_wrapper
    if not by_torch or trainer.device.type != "cpu":
        return None
    wrapped = DistributedDataParallel(
        module, process_group=group, **{name: options[name] for name in _DDP_OPTIONS}
    )
    if options.ddp_comm_hook == "fp16":
        register_ddp_comm_hook(DDPCommHookType.FP16_COMPRESS, wrapped)
    proxy = ModuleProxyWrapper(wrapped)
    if options.heartbeat_timeout > 0:
        return DistributedTimeoutWrapper(proxy, options.heartbeat_timeout)
    return proxy


# ---- gates ----


class GateRate:
    """`--gate-lr-factor`: a learning rate of gates, by scaling their updates.

    fairseq has one learning rate, and in half precision one vector of all parameters. For
    optimizers whose update is proportional to the learning rate, scaling the update is the same as
    another rate, weight decay included. With `--expert-combine preserving`, a gate's gradient is
    proportional to `blend`, which starts at 0. Therefore `blend` has the gates' rate, too.

    asked: the user's factor.
    usual: the default factor.
    layers: returns the expert layers; a dense model has none yet.
    """

    def __init__(
        self, asked: float | None, usual: float, layers: Callable[[], list[MoELayer]]
    ) -> None:
        self._asked = asked
        self._factor = usual if asked is None else asked
        self._layers = layers
        self._before: list[Tensor] = []

    def follow(self, optimizer: Any) -> None:
        """Scale each update of this fairseq optimizer."""
        if isinstance(optimizer, FairseqBMUF):
            optimizer = optimizer._optimizer

        def remember(*_: Any) -> None:
            self._before = [value.clone() for value in self._values(optimizer)]

        @torch.no_grad()
        def stretch(*_: Any) -> None:
            for before, value in zip(self._before, self._values(optimizer), strict=True):
                value.copy_(before.lerp(value, self._factor))

        for inner in each_optimizer(optimizer):
            inner.optimizer.register_step_pre_hook(remember)
            inner.optimizer.register_step_post_hook(stretch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"factor": self._factor}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a checkpoint's rate; {} stands for new gates."""
        if self._asked is None:
            self._factor = float(state.get("factor", self._factor))

    def _values(self, optimizer: Any) -> Iterator[Tensor]:
        """Yield the gates' parameters that the optimizer changes, or their float32 copies."""
        if self._factor == 1:
            return
        chosen = [parameter for layer in self._layers() for parameter in self._parameters(layer)]
        masters = getattr(optimizer, "fp32_params", None)
        if masters is None:
            yield from (parameter.detach() for parameter in chosen)
            return
        if isinstance(masters, dict):
            (vector,) = masters.values()
            masters = vector.detach().split(
                [parameter.numel() for parameter in optimizer.fp16_params]
            )
        gates = {id(parameter) for parameter in chosen}
        for parameter, master in zip(optimizer.fp16_params, masters, strict=True):
            if id(parameter) in gates:
                yield master.detach()

    def _parameters(self, layer: MoELayer) -> list[Tensor]:
        """Return a layer's parameters that have the gates' rate."""
        if not layer.gate.is_learned:
            return []
        return [layer.gate.weight] if layer.blend is None else [layer.gate.weight, layer.blend]
