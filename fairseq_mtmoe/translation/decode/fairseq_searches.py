"""A repair of fairseq's blocker of n-grams, which blocks nothing on a CPU."""

from typing import Any

from fairseq.ngram_repeat_block import NGramRepeatBlock
from torch import Tensor


def repair_ngram_blocker(generator: Any) -> None:
    """Replace a generator's blocker of n-grams."""
    blocker = getattr(generator, "repeat_ngram_blocker", None)  # a scorer of references has none
    if blocker is not None:
        generator.repeat_ngram_blocker = NoRepeats(blocker.no_repeat_ngram_size)


class NoRepeats(NGramRepeatBlock):  # type: ignore[misc]
    """fairseq's blocker of n-grams, repaired for a CPU, where it blocked nothing."""

    def forward(
        self, tokens: Tensor, lprobs: Tensor, bsz: int, beam_size: int, step: int
    ) -> Tensor:
        """Block n-grams as fairseq does."""
        tokens = tokens if self.use_extension else tokens[:, : step + 1]
        blocked: Tensor = super().forward(tokens, lprobs, bsz, beam_size, step)
        return blocked
