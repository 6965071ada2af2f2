"""Search among the words that existed when the target language was the newest.

The output layer loses its later rows, so that products and sums equal the older model's bit for
bit.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from fairseq_mtmoe.translation.data.vocabulary import End

NEVER = float("-inf")


@contextmanager
def limited_vocabulary(
    models: Sequence[Any], end: End | None, padded: bool = False
) -> Iterator[None]:
    """Let decoders score only the words before a vocabulary's `end`, or all if None.

    `padded`: later words have the logit -inf, for fairseq's generators, which ask for all of the
    dictionary.
    """
    if end is None:
        yield
        return
    layers = [model.decoder.output_projection for model in models]
    for model, layer in zip(models, layers, strict=True):
        model.decoder.output_projection = _cut(layer, end.rows, padded)
    try:
        yield
    finally:
        for model, layer in zip(models, layers, strict=True):
            model.decoder.output_projection = layer


class _Padded(nn.Linear):
    """A layer that pads its output to the expected number of features."""

    missing = 0

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.pad(super().forward(input), (0, self.missing), value=NEVER)


def _cut(layer: nn.Linear, count: int, padded: bool) -> nn.Linear:
    """Return the layer's first `count` features, in the same memory."""
    kind = _Padded if padded else nn.Linear
    cut = kind(layer.in_features, count, layer.bias is not None, device="meta")
    for name, value in layer.named_parameters():
        setattr(cut, name, nn.Parameter(value[:count], requires_grad=False))
    if isinstance(cut, _Padded):
        cut.missing = len(layer.weight) - len(cut.weight)
    return cut
