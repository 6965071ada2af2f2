"""Adapters of source tasks on a T5, an encoder and a translator: both stages, both adapters, and ablations."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_mtmoe.models.pemt.config import is_trainable
from fairseq_mtmoe.slots import adapter_blocks
from tests.helpers.borrowing import begun_source, begun_target, translator
from tests.helpers.encoders import TARGET, all_numbers, dense_encoder, task_batch
from tests.helpers.models import batch
from tests.helpers.pemt import inputs, pemt_model, target_model
from tests.helpers.pemt_bert import pemt_encoder
from tests.helpers.t5 import TINY, tiny_t5
from tests.systems.rows import base_sparse
from tests.systems.rows.mt_tag import task_losses
from tests.systems.system import Batch, System

# A row's name -> its options on the tiny T5 of tests/helpers/t5.py.
SOURCES: dict[str, dict[str, Any]] = {"pemt, source": dict(), "pemt, source, bottleneck": dict(adapter="bottleneck")}
TARGETS: dict[str, dict[str, Any]] = {
    "pemt": dict(),
    "pemt, bottleneck": dict(adapter="bottleneck"),
    "pemt, random prompt and the code's gates": dict(prompt_init="random", gate_input="activations"),
    "pemt, without correlation": dict(no_prompt=True),
}


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
    model._sources.clear()  # files that a checkpoint's adapters are compared with
    return model


def dense_twin() -> nn.Module:
    return tiny_t5(replace(TINY, dropout_rate=0.0))


@torch.no_grad()
def of_dense(make: Callable[..., nn.Module], options: dict[str, Any], dense: nn.Module) -> nn.Module:
    """Without a prompt, and with adapters that add nothing."""
    kept = {name: value for name, value in options.items() if name not in ("gate_input", "prompt_init")}
    model = make(2, **{**kept, "no_prompt": True})
    model.load_state_dict(dense.state_dict())
    for block in adapter_blocks(model).values():
        parts = [part for part in (block.mixture.adapters, block.mixture.target_adapter) if part is not None]
        for name, parameter in (found for part in parts for found in part.named_parameters()):
            if name.startswith("up"):
                parameter.zero_()
    return model


def row(name: str, stage: str, make: Callable[..., nn.Module], options: dict[str, Any], **form: Any) -> System:
    form["trainable"] = partial(is_trainable, stage=stage)
    return System(name, partial(build, make, options), of_dense=partial(of_dense, make, options), **form)


def numbers_of_heads(model: nn.Module, net_input: Batch) -> Tensor:
    """All heads' numbers; in training a model that borrows says its task sparsity loss, too."""
    numbers = model(**net_input)
    return all_numbers({task: numbers[task] for task in TARGET})


T5 = dict(dense_twin=dense_twin, batch=inputs, output=output, loss=copy_loss)
of_source = partial(pemt_model, name="aa", pemt_stage="source")
BERT = dict(dense_twin=dense_encoder, batch=task_batch, output=numbers_of_heads, loss=task_losses)
bert_source = partial(pemt_encoder, name="aa", pemt_stage="source")
bert_target = partial(target_model, make=pemt_encoder)
TRANSLATION = dict(
    dense_twin=translator, batch=partial(batch, task_ids=False), output=base_sparse.output, loss=base_sparse.copy_loss
)
ROWS = [
    *(row(name, "source", of_source, options, **T5) for name, options in SOURCES.items()),
    *(row(name, "target", target_model, options, **T5) for name, options in TARGETS.items()),
    row("pemt, without correlation and mixture", "target", pemt_model, {}, **T5),
    row("pemt_bert, source", "source", bert_source, {}, **BERT),
    row("pemt_bert", "target", bert_target, {}, **BERT),
    row("pemt_bert, bottleneck", "target", bert_target, dict(adapter="bottleneck"), **BERT),
    row("pemt_bert, the code's gates", "target", bert_target, dict(gate_input="activations"), **BERT),
    row("pemt_bert, without correlation", "target", bert_target, dict(no_prompt=True), **BERT),
    row("pemt_translation, source", "source", begun_source, {}, **TRANSLATION),
    row("pemt_translation", "target", begun_target, {}, **TRANSLATION),
    row("pemt_translation, bottleneck", "target", begun_target, dict(adapter="bottleneck"), **TRANSLATION),
    row("pemt_translation, without correlation", "target", begun_target, dict(no_prompt=True), **TRANSLATION),
]
