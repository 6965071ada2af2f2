"""Repairs of fairseq's searches that fail for multilingual tasks."""

import math
from typing import Any

from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.search import BeamSearch, DiverseBeamSearch, LexicallyConstrainedBeamSearch
from torch import Tensor

Found = tuple[Tensor, Tensor, Tensor]  # scores, words and hypotheses of the candidates


def mend(generator: Any, forced: int) -> None:
    """Replace a generator's faulty parts; `forced` words begin every hypothesis."""
    search = getattr(generator, "search", None)  # a scorer of references has no search
    if isinstance(search, LexicallyConstrainedBeamSearch):
        generator.search = ConstrainedSearch(generator.tgt_dict, search.representation, forced)
    elif isinstance(search, DiverseBeamSearch):
        generator.search = DiverseSearch(generator.tgt_dict, search.num_groups, -search.diversity_strength)
    blocker = getattr(generator, "repeat_ngram_blocker", None)
    if blocker is not None:
        generator.repeat_ngram_blocker = NoRepeats(blocker.no_repeat_ngram_size)


class NoRepeats(NGramRepeatBlock):  # type: ignore[misc]
    """fairseq's blocker of n-grams, repaired for a CPU, where it blocked nothing."""

    def forward(self, tokens: Tensor, lprobs: Tensor, bsz: int, beam_size: int, step: int) -> Tensor:
        """Block n-grams as fairseq does."""
        tokens = tokens if self.use_extension else tokens[:, : step + 1]
        blocked: Tensor = super().forward(tokens, lprobs, bsz, beam_size, step)
        return blocked


class DiverseSearch(DiverseBeamSearch):  # type: ignore[misc]
    """Diverse beam search; fairseq's confuses a sentence's number with its row."""

    def step(
        self, step: int, lprobs: Tensor, scores: Tensor, prev_output_tokens: Tensor | None = None,
        original_batch_idxs: Tensor | None = None,
    ) -> Found:  # fmt: skip
        """Take a step as fairseq does."""
        assert original_batch_idxs is not None
        if step == 0:
            self._numbers = original_batch_idxs
        rows = (original_batch_idxs.unsqueeze(1) == self._numbers).int().argmax(1)
        found: Found = super().step(step, lprobs, scores, prev_output_tokens, rows)
        return found


class ConstrainedSearch(LexicallyConstrainedBeamSearch):  # type: ignore[misc]
    """Lexical constraints (Post & Vilar 2018) on the words after the forced ones.

    While a word is forced, all others have probability 0. fairseq would place constraints there, and fill the beam with
    these impossible hypotheses. Here constraints begin after the forced words, with one hypothesis. At the length
    limit, a sentence keeps its complete hypotheses; fairseq fails if they are fewer than the beam.
    """

    constraint_states: Any  # of each sentence's hypotheses

    def __init__(self, tgt_dict: Any, representation: str, forced: int) -> None:
        super().__init__(tgt_dict, representation)
        self._forced, self.stop_on_max_len = forced, True
        self._plain = BeamSearch(tgt_dict)

    def step(
        self, step: int, lprobs: Tensor, scores: Tensor, prev_output_tokens: Tensor | None = None,
        original_batch_idxs: Tensor | None = None,
    ) -> Found:  # fmt: skip
        """Take a step as fairseq does."""
        if step < self._forced:
            found: Found = self._plain.step(step, lprobs, scores)
            self.constraint_states = [states[:1] * found[0].shape[1] for states in self.constraint_states]
            return found
        if step == self._forced > 0:  # only the first hypothesis is possible
            lprobs = lprobs + scores[:, :, step - 1 : step]
            for row, (state, *_) in enumerate(self.constraint_states):
                if not state.finished:
                    lprobs[row, :, self.eos] = -math.inf
            step = 0
        found = super().step(step, lprobs, scores, prev_output_tokens, original_batch_idxs)
        return found
