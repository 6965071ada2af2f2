"""`--train-only new-embeddings`: of a model's own only the rows of a new language's symbols are trained.

All else stays bit for bit, but for what a model that borrows trains by itself: adapters, and norms of a target.

The rows are parts of matrices that are trained as a whole: gradients of the others are zero, and what an optimizer
makes of these all the same, by weight decay or by moments, is undone after each update.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fairseq_mtmoe.protocols import MixesSources

_TABLES = (
    ("encoder.embed_tokens.weight", 0), ("decoder.embed_tokens.weight", 1),
    ("decoder.output_projection.weight", 1), ("decoder.output_projection.bias", 1),
)  # fmt: skip


class NewEmbeddings:
    """The tables of a model that get new rows at their ends, frozen but for these."""

    def __init__(self, model: nn.Module, counts: Sequence[int]) -> None:
        """Freeze the model but for the last `counts` rows, of sources' symbols and of targets'."""
        if not isinstance(model, MixesSources):  # which has frozen what it was pretrained with
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

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Within it an optimizer may change all rows; then those of old symbols are what they were."""
        if not self._kept:
            self._kept = [table[:old].detach().clone() for table, old in self._old.items()]
        yield
        with torch.no_grad():
            for (table, old), kept in zip(self._old.items(), self._kept, strict=True):
                table[:old].copy_(kept)


def _of_new_rows(gradient: Tensor, old: int) -> Tensor:
    return torch.cat([torch.zeros_like(gradient[:old]), gradient[old:]])
