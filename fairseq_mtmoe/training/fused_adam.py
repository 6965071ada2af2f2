"""fairseq's Adam in one pass over the parameters: `--optimizer fused_adam`.

fairseq's Adam passes over each parameter seven times. torch's fused kernel (CPU and CUDA) reads and
writes everything once. Update and state equal fairseq's, so a resumed run may change between `adam`
and `fused_adam`.
"""

import ast
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, List  # noqa: UP035 (fairseq understands no other in its options)

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import Adam, FairseqAdam
from omegaconf import II
from torch import Tensor

from fairseq_mtmoe.checkpoints.optimizer_state import check_when_loading

HALF = (torch.float16, torch.bfloat16)
PORTION = 2**24  # number of half-precision values that are copied to float32 at a time

Operands = tuple[Tensor, Tensor, Tensor, Tensor]  # parameter, gradient, first and second moment
# Common to one call of the kernel; the int counts updates
Together = tuple[torch.device, torch.dtype, int]


@dataclass
class FusedAdamConfig(FairseqDataclass):
    """The options of fairseq's `adam` that the fused kernel has."""

    adam_betas: Any = field(default=(0.9, 0.999), metadata={"help": "betas for Adam optimizer"})
    adam_eps: float = field(default=1e-8, metadata={"help": "epsilon for Adam optimizer"})
    weight_decay: float = field(default=0.0, metadata={"help": "weight decay"})
    # fairseq names another option in this way.
    lr: List[float] = II("optimization.lr")  # noqa: RUF009, UP006


@register_optimizer("fused_adam", dataclass=FusedAdamConfig)
class FairseqFusedAdam(FairseqOptimizer):
    """`FusedAdam` with fairseq's options."""

    def __init__(self, cfg: FusedAdamConfig, params: Any) -> None:
        super().__init__(cfg)
        self._optimizer = FusedAdam(params, **self.optimizer_config)

    average_params = FairseqAdam.average_params  # of moments, for `--use-bmuf --average-sync`

    @property
    def optimizer_config(self) -> dict[str, Any]:
        """The settings that a resumed run takes from its options, not from the checkpoint."""
        betas = self.cfg.adam_betas
        lr = self.cfg.lr
        return {
            "lr": lr if isinstance(lr, float) else lr[0],
            "betas": tuple(ast.literal_eval(betas) if isinstance(betas, str) else betas),
            "eps": self.cfg.adam_eps,
            "weight_decay": self.cfg.weight_decay,
        }


# fairseq's trainer restores moments only if the checkpoint names the same optimizer class.
FairseqFusedAdam.__name__ = FairseqAdam.__name__


class FusedAdam(Adam):
    """fairseq's `Adam` (with decoupled weight decay) by torch's fused kernel."""

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, **options)
        check_when_loading(self)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; return the closure's loss, if any."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            together: defaultdict[Together, list[Operands]] = defaultdict(list)
            copies = []
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                operands = self._operands(parameter)
                together[parameter.device, parameter.dtype, self.state[parameter]["step"]].append(
                    operands
                )
                if operands[0].data_ptr() != parameter.data_ptr():
                    copies.append((parameter, operands[0]))
            for (device, dtype, step), each in together.items():
                (_update_in_portions if dtype in HALF else _update)(group, device, step, each)
            for parameter, updated in copies:
                parameter.copy_(updated)
        return loss

    def _operands(self, parameter: Tensor) -> Operands:
        """Return parameter, gradient and moments, contiguous; count the update.

        In half precision, the moments are float32.
        """
        value = parameter.detach().contiguous()
        dtype = torch.float32 if value.dtype in HALF else value.dtype
        state = self.state[parameter]
        if not state:
            average, square = (torch.zeros_like(value, dtype=dtype) for _ in range(2))
            state.update(step=0, exp_avg=average, exp_avg_sq=square)
        for moment in ("exp_avg", "exp_avg_sq"):
            state[moment] = state[moment].to(value.device, dtype).contiguous()
        state["step"] += 1
        assert parameter.grad is not None
        return (
            value,
            parameter.grad.to(value.dtype).contiguous(),
            state["exp_avg"],
            state["exp_avg_sq"],
        )


def _update_in_portions(
    group: dict[str, Any], device: torch.device, step: int, operands: list[Operands]
) -> None:
    """Update half-precision parameters through float32 copies of a portion at a time."""
    for portion in _portions(operands):
        copies = [
            (value.float(), gradient.float(), average, square)
            for value, gradient, average, square in portion
        ]
        _update(group, device, step, copies)
        for (value, *_), (updated, *_) in zip(portion, copies, strict=True):
            value.copy_(updated)


def _portions(operands: list[Operands]) -> Iterator[list[Operands]]:
    """Yield lists of flat pieces of the operands, of up to `PORTION` numbers each."""
    portion: list[Operands] = []
    room = PORTION
    for each in operands:
        value, gradient, average, square = (tensor.view(-1).split(PORTION) for tensor in each)
        for piece in zip(value, gradient, average, square, strict=True):
            if piece[0].numel() > room:
                yield portion
                portion = []
                room = PORTION
            portion.append(piece)
            room -= piece[0].numel()
    yield portion


def _update(
    group: dict[str, Any], device: torch.device, step: int, operands: list[Operands]
) -> None:
    values, gradients, averages, squares = (list(column) for column in zip(*operands, strict=True))
    beta1, beta2 = group["betas"]
    # fairseq adds epsilon to the root of the second moment before the bias correction, and torch
    # adds it afterwards.
    eps = group["eps"] / math.sqrt(1 - beta2**step)
    steps = [torch.full((), float(step), device=device)] * len(values)
    torch._fused_adamw_(
        values,
        gradients,
        averages,
        squares,
        [],
        steps,
        lr=group["lr"],
        beta1=beta1,
        beta2=beta2,
        weight_decay=group["weight_decay"],
        eps=eps,
        amsgrad=False,
        maximize=False,
    )
