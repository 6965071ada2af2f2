"""Gates that learn faster or slower than all else: `--gate-lr-factor`.

fairseq has one learning rate, and in half precision one vector of all parameters. So the optimizer makes its update,
and the change of the gates is then stretched: for Adam, SGD and other optimizers whose change is proportional to the
learning rate this is a rate of their own, weight decay included.

With `--expert-combine preserving` a gate's gradient is proportional to `blend`, which begins at 0. A gate whose `blend`
does not leave 0 does not learn, so `blend` has the gates' rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from fairseq.optim import FairseqBMUF
from torch import Tensor

from fairseq_mtmoe.moe import MoELayer


class GateRate:
    """Stretches each update of the gates' weights and of `blend`.

    Args:
        asked: the factor that the user asked for, from 0, at which they stay as they are; 1 is the rate of all else;
            None where nobody asked.
        usual: the factor of a new run where nobody asked.
        layers: gives the expert layers, which a model that starts dense does not have yet.
    """

    def __init__(self, asked: float | None, usual: float, layers: Callable[[], list[MoELayer]]) -> None:
        self._asked = asked
        self._factor = usual if asked is None else asked
        self._with_blend = True
        self._layers = layers
        self._before: list[Tensor] = []

    def follow(self, optimizer: Any) -> None:
        """Stretch each update that this optimizer of fairseq's makes."""
        if isinstance(optimizer, FairseqBMUF):
            optimizer = optimizer._optimizer

        def remember(*_: Any) -> None:
            self._before = [value.clone() for value in self._values(optimizer)]

        @torch.no_grad()
        def stretch(*_: Any) -> None:
            for before, value in zip(self._before, self._values(optimizer), strict=True):
                value.copy_(before.lerp(value, self._factor))

        optimizer.optimizer.register_step_pre_hook(remember)
        optimizer.optimizer.register_step_post_hook(stretch)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"factor": self._factor, "with_blend": self._with_blend}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Go on as the run that a checkpoint is of.

        Args:
            state: None in checkpoints of before 0.1.12, whose runs go on as they began: `blend` has the rate of all
                else, and so have gates unless the user asks. Empty where the gates are new.
        """
        self._with_blend = state is not None and bool(state.get("with_blend", True))
        if self._asked is None:
            self._factor = 1.0 if state is None else float(state.get("factor", self._factor))

    def _values(self, optimizer: Any) -> Iterator[Tensor]:
        """What the optimizer changes of the gates: the parameters, or float32 copies of those in half precision."""
        if self._factor == 1:
            return
        chosen = [parameter for layer in self._layers() for parameter in self._parameters(layer)]
        masters = getattr(optimizer, "fp32_params", None)
        if masters is None:
            yield from (parameter.detach() for parameter in chosen)
            return
        if isinstance(masters, dict):
            (vector,) = masters.values()
            masters = vector.detach().split([parameter.numel() for parameter in optimizer.fp16_params])
        gates = {id(parameter) for parameter in chosen}
        for parameter, master in zip(optimizer.fp16_params, masters, strict=True):
            if id(parameter) in gates:
                yield master.detach()

    def _parameters(self, layer: MoELayer) -> list[Tensor]:
        """A layer's parameters with the gates' rate; no others have it."""
        if not layer.gate.is_learned:
            return []
        if self._with_blend and layer.blend is not None:
            return [layer.gate.weight, layer.blend]
        return [layer.gate.weight]
