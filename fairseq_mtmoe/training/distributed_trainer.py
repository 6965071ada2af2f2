"""fairseq's trainer where it takes a way that is not there: over GPUs on a CPU, or by fairscale past sharded experts.

With `--ddp-backend pytorch_ddp`, its default, fairseq names a GPU for modules on the CPU, which torch refuses; and the
norm of all gradients goes to a GPU wherever there is one, where it cannot be multiplied with gradients on the CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from fairseq import utils
from fairseq.distributed import DistributedTimeoutWrapper, ModuleProxyWrapper
from fairseq.optim import AMPOptimizer, FairseqBMUF, FP16Optimizer, MemoryEfficientFP16Optimizer, lr_scheduler
from fairseq.trainer import Trainer
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import DDPCommHookType, register_ddp_comm_hook
from torch.nn.parallel import DistributedDataParallel

from fairseq_mtmoe.moe import MoELayer
from fairseq_mtmoe.optim.loaded_state import check_when_loading
from fairseq_mtmoe.optim.optimizer_state import trained_parameters
from fairseq_mtmoe.slots import expert_slots
from fairseq_mtmoe.training import zero_sharding
from fairseq_mtmoe.training.overriding import with_option

_OPTIONS = ("broadcast_buffers", "bucket_cap_mb", "find_unused_parameters", "gradient_as_bucket_view")


class DistributedTrainer(Trainer):
    """fairseq's trainer, in several processes on CPUs as on GPUs, and with experts beside fairscale's optimizer.

    Raises:
        UserError: `--zero-sharding` is for gradients that are not flattened.
    """

    _wrapped_model: Any
    _wrapped_criterion: Any

    def __init__(self, cfg: Any, task: Any, model: Any, criterion: Any, quantizer: Any = None) -> None:
        self._slots = list(expert_slots(model).values())
        super().__init__(cfg, task, model, criterion, quantizer)

    # ---- experts ----

    @property
    def _layers(self) -> list[MoELayer]:
        return [slot.moe for slot in self._slots if slot.moe is not None]

    @property
    def _exchanges(self) -> bool:
        """Whether the steps of this process are waited for by others, whatever happens in them."""
        return any(layer.experts.placement.is_sharded for layer in self._layers)

    # ---- the wrappers for several processes ----

    @property
    def model(self) -> Any:
        """As fairseq's: the model in its wrapper for several processes."""
        if self._wrapped_model is None and self._is_wrapped_on_cpu:
            self._wrapped_model = self._on_cpu(self._model)
        return super().model

    @property
    def criterion(self) -> Any:
        """As fairseq's: the criterion, in such a wrapper if it has parameters."""
        if self._wrapped_criterion is None and self._is_wrapped_on_cpu and utils.has_parameters(self._criterion):
            self._wrapped_criterion = self._on_cpu(self._criterion)
        return super().criterion

    @property
    def _is_wrapped_on_cpu(self) -> bool:
        by_torch = self.cfg.distributed_training.ddp_backend in ("c10d", "pytorch_ddp")
        return by_torch and self.use_distributed_wrapper and self.device.type == "cpu"

    def _on_cpu(self, module: nn.Module) -> Any:
        return data_parallel_on_cpu(module, self.cfg.distributed_training, self.data_parallel_process_group)

    # ---- the optimizer ----

    def _build_optimizer(self) -> None:
        """As fairseq's; the optimizer's state is spread over the processes by `zero_sharding`."""
        distributed = self.cfg.distributed_training
        spreads = distributed.zero_sharding == "os"
        if spreads:
            zero_sharding.refuse_flat_gradients(self.cfg.common)
        with with_option(distributed, "zero_sharding", "none"):
            super()._build_optimizer()
        if spreads:
            zero_sharding.shard(self._optimizer, self.data_parallel_process_group)
            self._lr_scheduler = lr_scheduler.build_lr_scheduler(self.cfg.lr_scheduler, self._optimizer)
            self._lr_scheduler.step_update(0)
        plain: Any = unwrapped_optimizer(self._optimizer)
        for inner in getattr(plain.optimizer, "optimizers", {"": plain}).values():  # several in fairseq's `composite`
            check_when_loading(inner.optimizer, self._names_of_trained)
        if self.device.type == "cpu" and torch.cuda.is_available():
            plain.clip_grad_norm = functools.partial(clip_on_cpu, plain)

    def _names_of_trained(self) -> list[str]:
        modules = {"": self._model, "criterion.": self._criterion}
        return [at + name for at, module in modules.items() for name, _ in trained_parameters(module)]


def data_parallel_on_cpu(module: nn.Module, options: Any, group: dist.ProcessGroup) -> Any:
    """A module on the CPU in torch's wrapper for several processes, with fairseq's options of it."""
    wrapped = DistributedDataParallel(module, process_group=group, **{name: options[name] for name in _OPTIONS})
    if options.ddp_comm_hook == "fp16":
        register_ddp_comm_hook(DDPCommHookType.FP16_COMPRESS, wrapped)
    proxy = ModuleProxyWrapper(wrapped)
    return DistributedTimeoutWrapper(proxy, options.heartbeat_timeout) if options.heartbeat_timeout > 0 else proxy


def unwrapped_optimizer(optimizer: Any) -> Any:
    """The optimizer inside those that fairseq wraps around it, for half precision and for local updates."""
    while True:
        if isinstance(optimizer, FairseqBMUF):
            optimizer = optimizer._optimizer
        elif isinstance(optimizer, FP16Optimizer | AMPOptimizer):
            optimizer = optimizer.fp32_optimizer
        elif isinstance(optimizer, MemoryEfficientFP16Optimizer):
            optimizer = optimizer.wrapped_optimizer
        else:
            return optimizer


def clip_on_cpu(optimizer: Any, max_norm: float, aggregate_norm_fn: Any = None) -> Tensor:
    """As a fairseq optimizer's `clip_grad_norm`, and nothing of it goes to a GPU.

    Scales all gradients so that the norm of all but experts' is at most `max_norm` (0: not at all).

    Returns:
        that norm.
    """
    parameters: Iterable[nn.Parameter] = optimizer.params
    given = [(parameter, parameter.grad.detach()) for parameter in parameters if parameter.grad is not None]
    norms = [
        torch.norm(gradient, p=2, dtype=torch.float32)
        for parameter, gradient in given
        if not hasattr(parameter, "expert")
    ]
    if not norms:
        return torch.tensor(0.0)
    norm: Tensor = torch.stack(norms).norm()
    if aggregate_norm_fn is not None:
        norm = aggregate_norm_fn(norm)
    if max_norm > 0:
        torch._foreach_mul_([gradient for _, gradient in given], (max_norm / (norm + 1e-6)).clamp_(max=1))
    return norm
