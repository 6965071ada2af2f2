"""Adapters of language pairs on a translator."""

from functools import partial

from tests.helpers.borrowing import begun_source, begun_target, translator
from tests.helpers.models import batch
from tests.systems.rows.base_sparse import copy_loss, output
from tests.systems.rows.pemt import row

TRANSLATION = dict(dense_twin=translator, batch=partial(batch, task_ids=False), output=output, loss=copy_loss)
ROWS = [
    row("pemt_translation, source", "source", begun_source, {}, **TRANSLATION),
    row("pemt_translation", "target", begun_target, {}, **TRANSLATION),
    row("pemt_translation, bottleneck", "target", begun_target, dict(adapter="bottleneck"), **TRANSLATION),
    row("pemt_translation, without correlation", "target", begun_target, dict(no_prompt=True), **TRANSLATION),
]
