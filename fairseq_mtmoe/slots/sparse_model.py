"""What every model with expert slots can do: become sparse, load checkpoints dense and sparse; and a model's size."""

from typing import Any, ClassVar

from torch import Tensor, nn

from fairseq_mtmoe.checkpoints import mismatch
from fairseq_mtmoe.checkpoints.key_maps import EXPERTS, FIRST_WEIGHT, MOE
from fairseq_mtmoe.conditioning import ConditionalAttentionBias, FiLM, TaskEmbeddings
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.moe import ExpertBank, TaskGate
from fairseq_mtmoe.moe.mixture import MixtureGate
from fairseq_mtmoe.options import names_of_tasks
from fairseq_mtmoe.slots.expert_slot import expert_layers, expert_slots, sparsify


class SparseModel(nn.Module):
    """Mixed into a system's model, before its backbone."""

    task_names: list[str]  # behind the task ids that it was built with; none without ids
    dense_updates: int  # how many it is trained dense before it becomes sparse
    gate_lr_factor: ClassVar[float] = 1.0  # the gates' learning rate by all else's, unless an option says

    def remember_options(self, cfg: Any) -> None:
        """Called when the model is built; `cfg` has `ExpertOptions`."""
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
        """See `expert_slot.sparsify`."""
        sparsify(self)

    def load_state_dict(  # type: ignore[override]  # fairseq's
        self, state_dict: dict[str, Tensor], strict: bool = True, model_cfg: Any = None, args: Any = None
    ) -> Any:
        """As fairseq's; takes this process's experts of a checkpoint, see `adapt_to`."""
        self.adapt_to(state_dict)
        own = {path: layer.experts.placement for path, layer in expert_layers(self).items()}
        mine = {
            key: own[key.split(EXPERTS)[0]].local(value) if EXPERTS in key else value
            for key, value in state_dict.items()
        }
        return super().load_state_dict(mine, strict)

    def adapt_to(self, state_dict: dict[str, Tensor]) -> None:
        """Become sparse if the checkpoint is (UserError: it has other experts, or none where the model has some)."""
        slots = expert_slots(self)
        first = {path: path + FIRST_WEIGHT for path in slots}
        saved = {path: len(state_dict[key]) for path, key in first.items() if key in state_dict}
        elsewhere = {key.split(MOE)[0] for key in state_dict if MOE in key} ^ set(saved)
        if not saved and not elsewhere:
            if not self.is_dense:
                raise UserError(
                    "`--dense-updates` must be above 0 for a dense checkpoint to become sparse in training, but is 0 "
                    "instead; `mtmoe upcycle` makes a sparse checkpoint of it."
                )
            return
        if self.is_dense:
            self.sparsify()
        if elsewhere or len(saved) < len(slots):
            refusal = mismatch.refusal(self, state_dict)
            assert refusal is not None
            raise refusal
        for path, layer in expert_layers(self).items():
            placement = layer.experts.placement
            if saved[path] not in (placement.num_experts, placement.count):
                raise_invalid("--num-experts", f"{saved[path]} as in the checkpoint's {path}", placement.num_experts)


# Looked up, or applied once for a sentence or a task: nothing that every token pays for.
NOT_OF_TOKENS = (nn.Embedding, FiLM, ConditionalAttentionBias, TaskEmbeddings, MixtureGate)
OF_SENTENCES = ("pooler", "heads")


def model_size(model: nn.Module) -> dict[str, int]:
    """Return `parameters`, those of all ranks, and `multiplications`, those of one token, or one source and one target.

    A token passes every matrix once, but one expert of a layer and its own task's gate. Left out are products of tokens
    with each other (attention), and what is computed once for a sentence.
    """
    parameters = sum(parameter.numel() for parameter in model.parameters())
    for layer in expert_layers(model).values():
        placement, own = layer.experts.placement, sum(parameter.numel() for parameter in layer.experts.parameters())
        parameters += own // placement.count * (placement.num_experts - placement.count)
    return {"parameters": parameters, "multiplications": _per_token(model)}


def _per_token(module: nn.Module) -> int:
    if isinstance(module, NOT_OF_TOKENS):
        return 0
    own = sum(parameter.numel() for parameter in module.parameters(recurse=False) if parameter.dim() > 1)
    if isinstance(module, ExpertBank):
        own = sum(parameter[0].numel() for parameter in module.parameters(recurse=False) if parameter.dim() > 2)
    elif isinstance(module, TaskGate):
        own //= module.num_tasks
    return own + sum(_per_token(child) for name, child in module.named_children() if name not in OF_SENTENCES)
