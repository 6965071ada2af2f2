"""`--zero-sharding os` with experts: the optimizer's state of shared parameters is sharded over all ranks.

fairscale's OSS assigns each parameter to a rank, which updates it and sends it to all others. Sharded experts are
excluded: their state stays on their ranks.
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
    """Shard a fairseq optimizer's state over ranks in place, except for sharded experts."""
    if not dist.is_initialized() or dist.get_world_size(process_group) == 1:
        return  # a run may continue in one process with the same options
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
    """Return whether a parameter belongs to sharded experts."""
    return hasattr(parameter, "expert")


class OptimizerBesideExperts(torch.optim.Optimizer):
    """A sharded optimizer of shared parameters joined with one of this rank's experts."""

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
        if name.startswith("supports"):  # fairseq asks for features of the optimizer
            return getattr(self.experts, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def disable_mem_eff_fp16_loading_hack(self) -> bool:
        """True: `load_state_dict` keeps moments in float32, so fairseq need not load them."""
        return True

    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        """Update all parameters; return the closure's loss, if any."""
        self._pass_options_on()
        loss = self.shared.step(closure, **options)
        self.experts.step(**options)
        return loss

    def consolidate_state_dict(self, recipient_rank: int = 0) -> None:
        """Gather the shared parameters' state on a rank, or on all (-1); a collective call."""
        self._pass_options_on()
        self.shared.consolidate_state_dict(recipient_rank)
        self._knows_shared_state = recipient_rank in (-1, self.shared.rank)

    def state_dict(self) -> dict[str, Any]:
        """Return the experts' state, and the rest on ranks that gathered it last."""
        packed: dict[str, Any] = super().state_dict()
        for child, indices in self._indices:
            if child is self.experts or self._knows_shared_state:
                packed["state"].update({indices[own]: entry for own, entry in child.state_dict()["state"].items()})
        packed["state"] = dict(sorted(packed["state"].items()))
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load this rank's part of a state of all parameters."""
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
        """Return rank 0's state on every rank; called by fairseq before it loads one."""
        return self.shared.broadcast_global_state_dict(state_dict)

    def _keep_precision(self, state: dict[int, dict[str, Any]]) -> None:
        """Restore moments that torch rounds to half precision when it loads them."""
        parameters = [parameter for group in self.experts.param_groups for parameter in group["params"]]
        for parameter, index in zip(parameters, self._indices[1][1], strict=True):
            loaded = self.experts.state[parameter]
            for name, value in state.get(index, {}).items():
                if torch.is_tensor(value) and value.dtype != loaded[name].dtype:
                    loaded[name] = value.to(loaded[name].device)

    def _pass_options_on(self) -> None:
        """Copy settings, such as the learning rate, to the two inner optimizers."""
        for child, _ in self._indices:
            for own, theirs in zip(self.param_groups, child.param_groups, strict=True):
                theirs.update({option: value for option, value in own.items() if option != "params"})


def _select(groups: list[Group], of_experts: bool) -> list[Group]:
    """Return the groups with only the parameters of sharded experts, or with all others."""
    return [{**group, "params": [p for p in group["params"] if is_sharded(p) == of_experts]} for group in groups]
