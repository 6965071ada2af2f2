"""How far gates are from their start, and for how many tokens this changes the expert."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fairseq_mtmoe.analysis.routing import LAST
from fairseq_mtmoe.moe import Gate, MoELayer, Routing
from fairseq_mtmoe.slots import expert_layers
from fairseq_mtmoe.slots.slot import unwrapped


class GateMovement:
    """Keeps the gates' first weights, and scores the tokens of a validation with these and the present ones.

    Both scores are of the same tokens in the same layer, so that a token that changes its expert does so because of the
    gate alone. The scores of BASE layers are compared without prices.

    Attributes:
        since: the update before which the first weights were kept; None before they are.
        latest: the figures of the last validations, by layer.
        enabled: whether tokens are compared now; translations of a validation are not.
    """

    def __init__(self) -> None:
        self.since: int | None = None
        self.latest: deque[dict[str, dict[str, float]]] = deque(maxlen=LAST)
        self.enabled = True
        self._start: dict[str, Tensor] = {}
        self._counts: dict[str, Tensor] = {}  # of each layer the tokens with another expert, and all
        self._hooks: list[RemovableHandle] = []

    def begin(self, model: nn.Module, update: int) -> None:
        """Keep the present weights as the first ones, unless those of these gates are known."""
        weights = {path: layer.gate.weight for path, layer in _learned(model).items()}
        if weights and any(self._first(path, weight) is None for path, weight in weights.items()):
            self.since = update
            self._start = {path: weight.detach().clone() for path, weight in weights.items()}

    def _first(self, path: str, weight: Tensor) -> Tensor | None:
        """The first weights of a layer; None where they are not known, or of other tasks."""
        start = self._start.get(path)
        return None if start is None or start.shape != weight.shape else start.to(weight.device)

    def watch(self, model: nn.Module) -> None:
        """Compare the experts of tokens from now on, from zero."""
        self.rest()
        for path, layer in _learned(model).items():
            start = self._first(path, layer.gate.weight)
            if start is not None:
                self._start[path] = start
                self._counts[path] = torch.zeros(2, device=start.device)
                self._hooks.append(layer.gate.register_forward_hook(partial(self._compare, path)))

    def rest(self) -> None:
        """Compare no more."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._counts = [], {}

    @torch.no_grad()
    def _compare(self, path: str, gate: Gate, inputs: tuple[Any, ...], routing: Routing) -> None:
        if not self.enabled:
            return
        hidden_TH, task_B, padding_T, *_ = inputs
        with torch.autocast(hidden_TH.device.type, enabled=False):
            weights = (self._start[path], gate.weight)
            then_T, now_T = (gate.scores(of, hidden_TH.float(), task_B, padding_T).argmax(1) for of in weights)
        real_T = routing.expert_T < gate.num_experts
        self._counts[path] += torch.stack([(then_T != now_T) & real_T, real_T]).sum(1)

    def figures(self, model: nn.Module) -> dict[str, dict[str, float]]:
        """By layer `blend`, where there is one, and, where its start is known, `moved` and `changed`; then `rest`.

        `moved` is the length of the difference between present and first weights, in first lengths. `changed` is the
        share of tokens with another expert, over all processes since `watch`.
        """
        layers: dict[str, dict[str, float]] = {}
        for path, layer in _learned(model).items():
            found = {} if layer.blend is None else {"blend": float(layer.blend.detach())}
            if path in self._counts:
                if torch.distributed.is_initialized():
                    torch.distributed.all_reduce(self._counts[path])
                start, now = self._start[path].float(), layer.gate.weight.detach().float()
                changed, tokens = self._counts[path].tolist()
                found |= {"moved": float((now - start).norm() / start.norm()), "changed": changed / max(tokens, 1)}
            layers[path] = found
        self.rest()
        self.latest.append(layers)
        return layers

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"since": self.since, "start": {path: weight.cpu() for path, weight in self._start.items()}}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Go on from what a checkpoint kept; one of before 0.1.12 kept nothing."""
        kept = state or {"since": None, "start": {}}
        self.since, self._start = kept["since"], dict(kept["start"])


def _learned(model: nn.Module) -> dict[str, MoELayer]:
    return {path: layer for path, layer in expert_layers(unwrapped(model)).items() if layer.gate.is_learned}
