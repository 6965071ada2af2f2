"""The size of a model: its parameters, and the multiplications that one token costs."""

from __future__ import annotations

from torch import nn

from fairseq_mtmoe.conditioning import ConditionalAttentionBias, FiLM, TaskEmbeddings
from fairseq_mtmoe.moe import ExpertBank, TaskGate
from fairseq_mtmoe.moe.mixture import MixtureGate
from fairseq_mtmoe.slots.expert_slot import expert_layers

# Looked up, or applied once for a sentence or a task: nothing that every token pays for.
NOT_OF_TOKENS = (nn.Embedding, FiLM, ConditionalAttentionBias, TaskEmbeddings, MixtureGate)
OF_SENTENCES = ("pooler", "heads")


def model_size(model: nn.Module) -> dict[str, int]:
    """Return `parameters`, those of all ranks, and `multiplications`, those of one token.

    A token passes every matrix of the model once, but only one expert of a layer and only its own task's gate. Products
    of tokens with each other (attention) depend on the length and are left out, as is what is computed once for a
    sentence. Of an encoder-decoder the token is one source and one target token together.
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
