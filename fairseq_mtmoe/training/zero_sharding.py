"""`--zero-sharding os` beside experts: the optimizer's state of what all processes share is spread over them.

fairscale's OSS gives each parameter to one process, which updates it and sends it to all others. It must not do so with
sharded experts, whose state stays where they are.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.optim.shard import shard_ as fairseq_shard
from torch import Tensor
from torch import distributed as dist

from fairseq_mtmoe.optim.state import check_state

Group = dict[str, Any]


def shard(optimizer: Any, process_group: Any) -> None:
    """Spread a fairseq optimizer's state over the processes, in place, but for experts that only some of them hold."""
    if not dist.is_initialized() or dist.get_world_size(process_group) == 1:
        return  # a run may go on in one process with the same options
    plain = optimizer.optimizer
    kinds = {is_sharded(parameter) for group in plain.param_groups for parameter in group["params"]}
    if kinds == {False}:
        fairseq_shard(optimizer, process_group)
    elif kinds == {True, False}:
        config = optimizer.optimizer_config
        shared, experts = (type(plain)(_select(plain.param_groups, kind), **config) for kind in (False, True))
        holder = SimpleNamespace(optimizer=shared, optimizer_config=config)
        fairseq_shard(holder, process_group)
        optimizer.optimizer = OptimizerBesideExperts(plain.param_groups, holder.optimizer, experts)


def is_sharded(parameter: Tensor) -> bool:
    """Whether a parameter is of experts that other processes do not have."""
    return hasattr(parameter, "expert")


class OptimizerBesideExperts(torch.optim.Optimizer):
    """An optimizer that spreads its state over the processes, and one of this process's experts, as one of all."""

    def __init__(self, groups: list[Group], shared: Any, experts: torch.optim.Optimizer) -> None:
        super().__init__([{**group, "params": list(group["params"])} for group in groups], {})
        self.shared, self.experts = shared, experts
        self._knows_shared_state = False
        kinds = [is_sharded(parameter) for group in self.param_groups for parameter in group["params"]]
        self._indices = [
            (child, [index for index, kind in enumerate(kinds) if kind == of_experts])
            for child, of_experts in ((shared, False), (experts, True))
        ]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("supports"):  # fairseq's questions about the kind of optimizer
            return getattr(self.experts, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def disable_mem_eff_fp16_loading_hack(self) -> bool:
        """Read by fairseq, which else loads moments by itself to keep them in float32; `load_state_dict` does."""
        return True

    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        """One update of all parameters; returns the closure's loss, if there is one."""
        self._pass_options_on()
        loss = self.shared.step(closure, **options)
        self.experts.step(**options)
        return loss

    def consolidate_state_dict(self, recipient_rank: int = 0) -> None:
        """Collect the shared parameters' state in one process, or in all of them (-1). All must call it together."""
        self._pass_options_on()
        self.shared.consolidate_state_dict(recipient_rank)
        self._knows_shared_state = recipient_rank in (-1, self.shared.rank)

    def state_dict(self) -> dict[str, Any]:
        """The state in the order of the parameters: the experts', and the rest where it was last collected."""
        packed: dict[str, Any] = super().state_dict()
        for child, indices in self._indices:
            if child is self.experts or self._knows_shared_state:
                packed["state"].update({indices[own]: entry for own, entry in child.state_dict()["state"].items()})
        packed["state"] = dict(sorted(packed["state"].items()))
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take from the state of all parameters, as one optimizer has it, what this process updates."""
        check_state(self, state_dict)
        state = state_dict["state"]
        for own, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            own.update({option: value for option, value in saved.items() if option != "params"})
        for child, indices in self._indices:
            packed = torch.optim.Optimizer.state_dict(child)["param_groups"]
            mine = {own: dict(state[index]) for own, index in enumerate(indices) if index in state}
            child.load_state_dict({"state": mine, "param_groups": packed})
        self._keep_precision(state)
        self._pass_options_on()

    def broadcast_global_state_dict(self, state_dict: Any) -> Any:
        """The first process's state, in every process: called by fairseq before it loads one."""
        return self.shared.broadcast_global_state_dict(state_dict)

    def _keep_precision(self, state: dict[int, dict[str, Any]]) -> None:
        """Undo that torch rounds the moments of half-precision parameters when it loads them."""
        parameters = [parameter for group in self.experts.param_groups for parameter in group["params"]]
        for parameter, index in zip(parameters, self._indices[1][1], strict=True):
            loaded = self.experts.state[parameter]
            for name, value in state.get(index, {}).items():
                if torch.is_tensor(value) and value.dtype != loaded[name].dtype:
                    loaded[name] = value.to(loaded[name].device)

    def _pass_options_on(self) -> None:
        """Schedulers and resumed runs set learning rates here; the two that do the work must see them."""
        for child, _ in self._indices:
            for own, theirs in zip(self.param_groups, child.param_groups, strict=True):
                theirs.update({option: value for option, value in own.items() if option != "params"})


def _select(groups: list[Group], of_experts: bool) -> list[Group]:
    """The groups with the parameters of sharded experts, or with all others."""
    return [{**group, "params": [p for p in group["params"] if is_sharded(p) == of_experts]} for group in groups]
