"""What every model with expert slots can do: become sparse, and load checkpoints dense and sparse."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from fairseq_mtmoe.checkpoints import mismatch
from fairseq_mtmoe.checkpoints.key_maps import EXPERTS, FIRST_WEIGHT, MOE
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.options import names_of_tasks
from fairseq_mtmoe.slots.expert_slot import ExpertSlot, expert_blocks, expert_layers, expert_slots


class SparseModel(nn.Module):
    """Mixed into a system's model, before its backbone.

    Attributes:
        task_names: the names behind the task ids that it was built with; none if it was built without ids.
        dense_updates: how many updates it is trained dense before it becomes sparse.
        gate_lr_factor: learning rate of the gates, as a multiple of all else's, where no option says.
    """

    task_names: list[str]
    dense_updates: int
    gate_lr_factor: ClassVar[float] = 1.0

    def remember_options(self, cfg: Any) -> None:
        """To be called when the model is built; `cfg` has `ExpertOptions`."""
        self.task_names = names_of_tasks(cfg)
        self.dense_updates = cfg.dense_updates

    @property
    def is_dense(self) -> bool:
        """Whether the experts are still to come."""
        return not expert_layers(self)

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> list[str]:
        """Read by torch's DDP: the experts that other processes do not have."""
        return [name for name, parameter in self.named_parameters() if hasattr(parameter, "expert")]

    def sparsify(self) -> None:
        """Make every slot's experts copies of its feed-forward layer; the gates start at random."""
        for block in expert_blocks(self).values():
            assert isinstance(block.slot, ExpertSlot)
            block.slot.sparsify(block)

    def load_state_dict(  # type: ignore[override]  # fairseq's
        self, state_dict: dict[str, Tensor], strict: bool = True, model_cfg: Any = None, args: Any = None
    ) -> Any:
        """As fairseq's; a model that starts dense becomes sparse first when the checkpoint is.

        Of all experts' parameters a process takes those of its own.

        Raises:
            UserError: the checkpoint is dense and the model never was, or their numbers of experts differ.
        """
        self.adapt_to(state_dict)
        own = {path: layer.experts.placement for path, layer in expert_layers(self).items()}
        mine = {
            key: own[key.split(EXPERTS)[0]].local(value) if EXPERTS in key else value
            for key, value in state_dict.items()
        }
        return super().load_state_dict(mine, strict)

    def adapt_to(self, state_dict: dict[str, Tensor]) -> None:
        """Become sparse if the checkpoint is; raises a UserError where it cannot be this model's."""
        slots = expert_slots(self)
        first = {path: path + FIRST_WEIGHT for path in slots}
        saved = {path: len(state_dict[key]) for path, key in first.items() if key in state_dict}
        elsewhere = {key.split(MOE)[0] for key in state_dict if MOE in key} ^ set(saved)
        if elsewhere or (saved and len(saved) < len(slots)):
            if self.is_dense:
                self.sparsify()  # so that what is compared has experts, too; nobody trains this model
            refusal = mismatch.refusal(self, state_dict)
            assert refusal is not None
            raise refusal
        if not saved:
            if not self.is_dense:
                raise UserError(
                    "`--dense-updates` must be above 0 for a dense checkpoint to become sparse in training, but is 0 "
                    "instead; `mtmoe upcycle` makes a sparse checkpoint of it."
                )
            return
        if self.is_dense:
            self.sparsify()
        for path, layer in expert_layers(self).items():
            placement = layer.experts.placement
            if saved[path] not in (placement.num_experts, placement.count):
                raise_invalid("--num-experts", f"{saved[path]} as in the checkpoint's {path}", placement.num_experts)
