"""Adapters of source tasks on an encoder with heads."""

from functools import partial

from torch import Tensor, nn

from tests.helpers.encoders import TARGET, all_numbers, dense_encoder, task_batch
from tests.helpers.pemt import target_model
from tests.helpers.pemt_bert import pemt_encoder
from tests.systems.rows.mt_tag import task_losses
from tests.systems.rows.pemt import row
from tests.systems.system import Batch


def output(model: nn.Module, net_input: Batch) -> Tensor:
    """All heads' numbers; in training a model that borrows says its task sparsity loss, too."""
    numbers = model(**net_input)
    return all_numbers({task: numbers[task] for task in TARGET})


BERT = dict(dense_twin=dense_encoder, batch=task_batch, output=output, loss=task_losses)
of_source = partial(pemt_encoder, name="aa", pemt_stage="source")
of_target = partial(target_model, make=pemt_encoder)
ROWS = [
    row("pemt_bert, source", "source", of_source, {}, **BERT),
    row("pemt_bert", "target", of_target, {}, **BERT),
    row("pemt_bert, bottleneck", "target", of_target, dict(adapter="bottleneck"), **BERT),
    row("pemt_bert, the code's gates", "target", of_target, dict(gate_input="activations"), **BERT),
    row("pemt_bert, without correlation", "target", of_target, dict(no_prompt=True), **BERT),
]
