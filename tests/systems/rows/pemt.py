"""Adapters of source tasks on a T5, an encoder and a translator: both stages, both adapters, and ablations."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_mtmoe.pemt.config import is_trainable
from fairseq_mtmoe.slots import adapter_blocks
from tests.helpers.encoders import TARGET, all_numbers, dense_encoder, task_batch
from tests.helpers.models import MARIAN, batch
from tests.helpers.pemt import inputs, pemt_encoder, pemt_model, pemt_translator, target_model, translator
from tests.helpers.t5 import TINY, tiny_t5
from tests.systems.rows import base_sparse
from tests.systems.rows.mt_tag import task_losses
from tests.systems.system import Batch, System, with_weights_of

# A row's name, which begins with its backbone's -> its options.
SOURCE = dict(name="aa", pemt_stage="source")
OPTIONS: dict[str, dict[str, Any]] = {
    "pemt, source, bottleneck": dict(adapter="bottleneck", **SOURCE),
    "pemt, random prompt and the code's gates": dict(prompt_init="random", gate_input="activations"),
    "pemt, without correlation and mixture": {},
    "pemt_bert, the code's gates": dict(gate_input="activations"),
}
for _backbone in ("pemt", "pemt_bert", "pemt_translation"):
    OPTIONS |= {
        f"{_backbone}, source": SOURCE,
        _backbone: {},
        f"{_backbone}, bottleneck": dict(adapter="bottleneck"),
        f"{_backbone}, without correlation": dict(no_prompt=True),
    }
OPTIONS["pemt_translation, on Marian"] = dict(MARIAN)


def output(model: nn.Module, net_input: Batch) -> Tensor:
    scores: Tensor = model(**net_input)[0]
    return scores


def copy_loss(model: nn.Module, net_input: Batch) -> Tensor:
    """Cross-entropy of naming what the decoder reads."""
    return nn.functional.cross_entropy(
        output(model, net_input).flatten(0, 1), net_input["prev_output_tokens"].flatten()
    )


def build(make: Callable[..., nn.Module], options: dict[str, Any], seed: int) -> nn.Module:
    """The model, all of which trains and may change: what each stage freezes has tests of its own."""
    model = make(seed, **options).requires_grad_(True)
    model._loaded_sources.sources.clear()  # files that a checkpoint's adapters are compared with
    return model


@torch.no_grad()
def of_dense(make: Callable[..., nn.Module], options: dict[str, Any], dense: nn.Module) -> nn.Module:
    """Without a prompt, and with adapters that add nothing."""
    kept = {name: value for name, value in options.items() if name not in ("gate_input", "prompt_init")}
    model = with_weights_of(dense, make(2, **{**kept, "no_prompt": True}))
    for block in adapter_blocks(model).values():
        parts = [part for part in (block.mixture.adapters, block.mixture.target_adapter) if part is not None]
        for name, parameter in (found for part in parts for found in part.named_parameters()):
            if name.startswith("up"):
                parameter.zero_()
    return model


def numbers_of_heads(model: nn.Module, net_input: Batch) -> Tensor:
    """All heads' numbers; in training a model that borrows says its task sparsity loss, too."""
    numbers = model(**net_input)
    return all_numbers({task: numbers[task] for task in TARGET})


# A backbone's name -> how its models are made, and what its rows have in common.
BACKBONES: dict[str, tuple[Callable[..., nn.Module], dict[str, Any]]] = {
    "pemt": (
        pemt_model,
        dict(dense_twin=partial(tiny_t5, replace(TINY, dropout_rate=0.0)), batch=inputs, output=output, loss=copy_loss),
    ),
    "pemt_bert": (
        pemt_encoder, dict(dense_twin=dense_encoder, batch=task_batch, output=numbers_of_heads, loss=task_losses),
    ),
    "pemt_translation": (
        pemt_translator,
        dict(dense_twin=translator, batch=partial(batch, task_ids=False), output=base_sparse.output,
             loss=base_sparse.copy_loss),
    ),
}  # fmt: skip


def row(name: str, options: dict[str, Any]) -> System:
    make, form = BACKBONES[name.partition(",")[0]]
    if make is pemt_translator:
        form = {**form, "dense_twin": partial(translator, **options)}
    stage = options.get("pemt_stage", "target")
    if stage == "target" and "mixture" not in name:
        make = partial(target_model, make=make)
    return System(
        name, partial(build, make, options), of_dense=partial(of_dense, make, options),
        trainable=partial(is_trainable, stage=stage), **form,
    )  # fmt: skip


ROWS = [row(name, options) for name, options in OPTIONS.items()]
