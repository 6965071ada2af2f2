"""What in a network may adapt to the task, and which parameters that are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from fairseq_mtmoe.conditioning.alignment import ConditionalAlignment
from fairseq_mtmoe.conditioning.attention import ConditionalAttentionBias
from fairseq_mtmoe.conditioning.bottleneck import ConditionalBottleneck
from fairseq_mtmoe.conditioning.film import FiLM
from fairseq_mtmoe.conditioning.task_embeddings import TaskEmbeddings

ATTENTION, NORM, ALIGNMENT, BOTTLENECK = PARTS = ("attention", "norm", "alignment", "bottleneck")

# All parameters of these; of a conditional norm FiLM's, since the others are those of the norm that it was made from.
_OF_CONDITIONS = (TaskEmbeddings, FiLM, ConditionalAttentionBias, ConditionalAlignment, ConditionalBottleneck)


def conditional_names(model: nn.Module) -> Iterator[str]:
    """The names of the parameters that a model has because it adapts to tasks; a pretrained one has none of them."""
    for path, module in model.named_modules():
        if isinstance(module, _OF_CONDITIONS):
            for name, _ in module.named_parameters(prefix=path):
                yield name


def with_new_conditions(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of a model that adapts to no tasks, with what else `model` has as it is now; any other as it is."""
    own, new = model.state_dict(), set(conditional_names(model))
    tables = {f"{path}.weight" for path, module in model.named_modules() if isinstance(module, TaskEmbeddings)}
    return {**({} if tables & state.keys() else {name: own[name] for name in new}), **state}
