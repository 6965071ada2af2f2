"""`--train-only new-embeddings`: train only the embeddings of new symbols.

All other weights stay exactly equal. A PEMT model also trains its adapters and, as a target, its
norms.

The new rows belong to matrices that the optimizer updates as a whole. The gradients of old rows are
zero. Changes that weight decay or moments still make to them are undone after each update.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fairseq_mtmoe.checkpoints.key_maps import (
    DECODER_EMBEDDINGS,
    ENCODER_EMBEDDINGS,
    OUTPUT,
    OUTPUT_BIAS,
)
from fairseq_mtmoe.core.protocols import training_model

_TABLES = (ENCODER_EMBEDDINGS, 0), (DECODER_EMBEDDINGS, 1), (OUTPUT, 1), (OUTPUT_BIAS, 1)

logger = logging.getLogger(__name__)


class NewEmbeddings:
    """Embedding tables with new rows at their ends; only these rows are trained."""

    def __init__(self, model: nn.Module, counts: Sequence[int]) -> None:
        """Freeze the model except for the last `counts` rows (source and target symbols)."""
        if training_model(model).gates_event is None:  # it has frozen its pretrained part itself
            model.requires_grad_(False)
        tables = dict(model.named_parameters(remove_duplicate=False))
        self._old: dict[nn.Parameter, int] = {}
        for name, side in _TABLES:
            if name in tables and counts[side]:
                self._old[tables[name]] = len(tables[name]) - counts[side]
        for table, old in self._old.items():
            table.requires_grad_(True)
            table.register_hook(lambda gradient, old=old: _of_new_rows(gradient, old))
        self._kept: list[Tensor] = []
        new = sum(table[old:].numel() for table, old in self._old.items())
        logger.info(
            f"{new:,} parameters of new symbols are trained; fairseq counts their tables whole "
            "(num. trained)"
        )

    @contextmanager
    def old_rows_kept(self) -> Iterator[None]:
        """Restore the rows of old symbols after an optimizer step inside this context."""
        if not self._kept:
            self._kept = [table[:old].detach().clone() for table, old in self._old.items()]
        yield
        with torch.no_grad():
            for (table, old), kept in zip(self._old.items(), self._kept, strict=True):
                table[:old].copy_(kept)


def _of_new_rows(gradient: Tensor, old: int) -> Tensor:
    return torch.cat([torch.zeros_like(gradient[:old]), gradient[old:]])
