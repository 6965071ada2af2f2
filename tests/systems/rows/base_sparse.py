"""Sparse translation: BASE, task-gated and Switch experts, as published and in our variants."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_mtmoe.conditioning import PARTS
from tests.helpers.models import MARIAN, MBART, TASKS, batch, dense_model, moe_model, perturb
from tests.systems.system import Batch, System, train, with_experts_of, with_weights_of

FORMS = MARIAN | MBART
CONDITIONS = dict(conditional=",".join(PARTS))
# A row's name -> its options on the 2+2-block model of tests/helpers/models.py.
OPTIONS: dict[str, dict[str, Any]] = {
    "base": dict(expert_gates="base"),
    "base, greedy evaluation": dict(expert_gates="base", base_evaluation="greedy"),
    "base, the paper's combine": dict(expert_gates="base", expert_combine="paper"),
    "task": dict(expert_gates="task"),
    "switch": dict(expert_gates="switch"),
    "fixed": dict(expert_gates="fixed"),
    "base,task": dict(expert_gates="base,task", encoder_layers=4, decoder_layers=4),
    "dense, then base": dict(expert_gates="base", dense_updates=20),
    "pre-norm": dict(expert_gates="base", encoder_normalize_before=True, decoder_normalize_before=True),
    "base, conditional": dict(expert_gates="base", **CONDITIONS),
    "task, on Marian": dict(expert_gates="task", **MARIAN),
    "base, conditional, on mBART": dict(expert_gates="base", **CONDITIONS, **MBART),
}


def output(model: nn.Module, net_input: Batch) -> Tensor:
    logits: Tensor = model(**net_input)[0]
    return logits[net_input["prev_output_tokens"].ne(1)]


def copy_loss(model: nn.Module, net_input: Batch) -> Tensor:
    """Cross-entropy of naming the target's own tokens."""
    target = net_input["prev_output_tokens"]
    return torch.nn.functional.cross_entropy(output(model, net_input), target[target.ne(1)])


def build(options: dict[str, Any], seed: int) -> nn.Module:
    """The sparse model; one that begins dense has made its dense updates."""
    model = moe_model(seed, **options)
    if model.is_dense:
        train(model, copy_loss, batch(), options["dense_updates"])
        model.sparsify()
    return model.eval()


def dense_twin(options: dict[str, Any]) -> nn.Module:
    """A dense model in the same sizes and of the same form."""
    kept = {key: value for key, value in options.items() if "layers" in key or "normalize" in key or key in FORMS}
    return perturb(dense_model(**kept))


def of_dense(options: dict[str, Any], dense: nn.Module) -> nn.Module:
    """One expert per layer (fixed gates: per task), a copy of the feed-forward; the paper's combine at gate value 1."""
    experts = len(TASKS) if options.get("expert_gates") == "fixed" else 1
    return with_experts_of(dense, moe_model(**{**options, "num_experts": experts, "dense_updates": 1}))


def conditional_dense(seed: int) -> nn.Module:
    return dense_model(seed, task_names=",".join(TASKS), **CONDITIONS)


def in_decoder(name: str) -> bool:
    """The encoder is frozen, and with it the embeddings, which both share; not what they know of tasks."""
    return name.startswith(("decoder.", "encoder.task_embeddings."))


COMMON = dict(batch=batch, output=output, loss=copy_loss, trainable=in_decoder)
ROWS = [
    System(
        "dense, conditional", conditional_dense, partial(dense_twin, {}),
        lambda dense: with_weights_of(dense, conditional_dense(2)), **COMMON,
    ),
    *(
        System(name, partial(build, options), partial(dense_twin, options), partial(of_dense, options), **COMMON)
        for name, options in OPTIONS.items()
    ),
]  # fmt: skip
