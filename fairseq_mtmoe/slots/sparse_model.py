"""Base of models with expert slots, and a model's size.

The base sparsifies, and loads dense and sparse checkpoints.
"""

from typing import Any, ClassVar

from torch import Tensor, nn

from fairseq_mtmoe.checkpoints import mismatch
from fairseq_mtmoe.checkpoints.key_maps import EXPERTS, FIRST_WEIGHT
from fairseq_mtmoe.conditioning import ConditionalAttentionBias, FiLM, TaskEmbeddings
from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.core.options import names_of_tasks
from fairseq_mtmoe.core.protocols import TrainingModel
from fairseq_mtmoe.moe import AdapterBank, ExpertBank, TaskGate
from fairseq_mtmoe.moe.mixture import MixtureGate
from fairseq_mtmoe.slots.expert_slot import expert_layers, expert_slots, sparsify_all_slots


class SparseModel(TrainingModel, nn.Module):
    """Mixin of a system's model, which precedes its backbone."""

    gate_lr_factor: ClassVar[float] = 1.0  # the default of `--gate-lr-factor`

    def remember_options(self, cfg: Any) -> None:
        """Keep the options that training needs; `cfg` has `ExpertOptions`."""
        self.task_names = names_of_tasks(cfg)
        self.dense_updates = cfg.dense_updates

    @property
    def is_dense(self) -> bool:
        """Whether the model has no experts yet."""
        return not expert_layers(self)

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> list[str]:
        """Names of this rank's own experts, which torch's DDP must not average."""
        return [name for name, parameter in self.named_parameters() if hasattr(parameter, "expert")]

    def sparsify(self) -> None:
        """See `expert_slot.sparsify_all_slots`."""
        sparsify_all_slots(self)

    def load_state_dict(  # type: ignore[override]  # fairseq's
        self,
        state_dict: dict[str, Tensor],
        strict: bool = True,
        model_cfg: Any = None,
        args: Any = None,
    ) -> Any:
        """Load a checkpoint's state, with this rank's experts; see `expect_same_experts`."""
        self.expect_same_experts(state_dict)
        layers = expert_layers(self)
        state = dict(state_dict)
        for key, value in state_dict.items():
            if EXPERTS in key:
                state[key] = layers[key.split(EXPERTS)[0]].experts.placement.local(value)
        return super().load_state_dict(state, strict)

    def expect_same_experts(self, state_dict: dict[str, Tensor]) -> None:
        """Raise a `UserError` if a state has other experts, or none."""
        saved = {}
        for key, value in state_dict.items():
            if key.endswith(FIRST_WEIGHT):
                saved[key.removesuffix(FIRST_WEIGHT)] = len(value)
        if not saved:
            if not self.is_dense:
                raise UserError(
                    "`--dense-updates` must be above 0 to continue a dense checkpoint and make it "
                    "sparse in training; `mtmoe upcycle` makes it sparse at once."
                )
            return
        if saved.keys() != expert_slots(self).keys():
            raise mismatch.Mismatch(
                "The checkpoint must have the experts of the model, but has others."
            )
        for path, layer in expert_layers(self).items():
            placement = layer.experts.placement
            if saved[path] not in (placement.num_experts, placement.count):
                raise_invalid(
                    "--num-experts",
                    f"{saved[path]} as in the checkpoint's {path}",
                    placement.num_experts,
                )


def depends_on_tasks(model: nn.Module) -> bool:
    """Return whether a model's gates or conditional parts depend on task ids."""
    by_gates = any(slot.plan.gate.needs_tasks for slot in expert_slots(model).values())
    return by_gates or any(isinstance(module, TaskEmbeddings) for module in model.modules())


# Lookups, and modules that are applied once per sentence or task: no multiplications per token.
NOT_OF_TOKENS = (nn.Embedding, FiLM, ConditionalAttentionBias, TaskEmbeddings, MixtureGate)
OF_SENTENCES = ("heads", "prompt", "relative_positions")


def model_size(model: nn.Module) -> dict[str, int]:
    """Return a model's size.

    It has the number of `parameters` of all ranks, and of `multiplications` per token. In a
    translator these count one source and one target token. A token passes every matrix once, but
    only one expert of a layer and its own task's gate. Products between tokens (attention) and
    computations per sentence are left out.
    """
    parameters = sum(parameter.numel() for parameter in model.parameters())
    for layer in expert_layers(model).values():
        placement = layer.experts.placement
        size = sum(parameter.numel() for parameter in layer.experts.parameters())
        parameters += size // placement.count * (placement.num_experts - placement.count)
    return {"parameters": parameters, "multiplications": _per_token(model)}


def _per_token(module: nn.Module) -> int:
    if isinstance(module, NOT_OF_TOKENS):
        return 0
    parameters = list(module.parameters(recurse=False))
    size = sum(parameter.numel() for parameter in parameters if parameter.dim() > 1)
    if isinstance(module, ExpertBank):
        size = sum(parameter[0].numel() for parameter in parameters if parameter.dim() > 2)
    elif isinstance(module, AdapterBank):
        size = module.down.numel() + module.up.numel()
    elif isinstance(module, TaskGate):
        size //= module.num_tasks
    for name, child in module.named_children():
        if name not in OF_SENTENCES:
            size += _per_token(child)
    return size
