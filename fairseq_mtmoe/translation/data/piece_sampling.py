"""Subword regularisation: each epoch trains on new segmentations of the sentences.

A unigram model's segmentations are drawn by their probabilities to the power of `amount` (Kudo
2018, "Subword Regularization"); a BPE model skips each merge with probability `amount` (Provilkov
et al. 2020, "BPE-Dropout"). SentencePiece (0.2.3) can do both, but draws differently in each
process in spite of its seed, so that runs could not be resumed. Binarized data is enough: its
pieces are the text.
"""

import math
import random
from argparse import Namespace
from bisect import bisect
from collections.abc import Callable, Mapping
from itertools import accumulate, pairwise
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.translation.data.new_pieces import BPE, SPACE, model_type, plain_pieces
from fairseq_mtmoe.translation.data.vocabulary import Side, Vocabulary

_MOST_WORDS = 20_000  # cached words, some 3 KB each
NEVER = -math.inf
SIDES = ("source", "target")

# For each end position in a word: starts of the pieces that may end there, their ids, and cumulated
# probabilities
_Table = list[tuple[list[int], list[int], list[float]]]
# From a word to its pieces' ids; empty without a segmentation
_Draw = Callable[[str, random.Random], list[int]]


class SampledSide:
    """Draws segmentations of sources or of targets, of at most `longest` tokens.

    Raises:
        UserError: the dictionary lacks more than half of the model's pieces, so another model
            segmented the data.
    """

    def __init__(
        self, side: Side, dictionary: Dictionary, amount: float, longest: int, folder: str
    ) -> None:
        model = side.processor
        self._longest = longest
        ids = {name: int(dictionary.index(name)) for name in plain_pieces(side.model)}
        listed = {name: number for name, number in ids.items() if number != dictionary.unk()}
        if len(listed) < len(ids) / 2:
            raise UserError(
                "`--sample-pieces` needs the SentencePiece model of the data, but the dictionary "
                f"lacks {len(ids) - len(listed):,} of the {len(ids):,} pieces of the model in "
                f"`{folder}`."
            )
        scores = {name: model.get_score(model.piece_to_id(name)) for name in listed}
        self._names = {number: name for name, number in listed.items()}
        self._are_of_words = not any(SPACE in name[1:] for name in listed)
        self._draw: _Draw = _Unigram(listed, scores, amount)
        if model_type(side.model) == BPE:
            self._draw = _Bpe(listed, scores, amount)

    def drawn(self, tokens_T: Tensor, seed: int) -> Tensor:
        """Return a new segmentation of the sentence.

        Language tokens, unknown tokens and the end keep their places.

        If the result is too long, the sentence is returned unchanged.
        """
        rng = random.Random(seed)
        result = list[int]()
        word = list[int]()
        text = ""
        for token in [*tokens_T.tolist(), -1]:
            name = self._names.get(token)
            if word and (name is None or (self._are_of_words and name[0] == SPACE)):
                result += self._draw(text, rng) or word
                word = []
                text = ""
            if name is not None:
                word.append(token)
                text += name
            elif token >= 0:
                result.append(token)
        if len(result) > self._longest:
            return tokens_T
        return torch.tensor(result, dtype=tokens_T.dtype)


class _Unigram:
    """Draws a segmentation by its probability to the power of `amount`.

    The algorithm is forward filtering, backward sampling.
    """

    def __init__(self, ids: dict[str, int], scores: dict[str, float], amount: float) -> None:
        self._pieces = {name: (ids[name], amount * score) for name, score in scores.items()}
        self._longest = max(map(len, scores))
        self._tables: dict[str, _Table] = {}

    def __call__(self, word: str, rng: random.Random) -> list[int]:
        table = self._tables.get(word)
        if table is None:
            if len(self._tables) >= _MOST_WORDS:
                self._tables.clear()
            table = self._tables[word] = self._table(word)
        end = len(word)
        drawn = list[int]()
        while end > 0:
            starts, ids, sums = table[end - 1]
            if not sums:
                return []
            chosen = min(bisect(sums, rng.random() * sums[-1]), len(ids) - 1)
            drawn.append(ids[chosen])
            end = starts[chosen]
        return drawn[::-1]

    def _table(self, word: str) -> _Table:
        table: _Table = []
        forward = [0.0]  # logarithm of the sum over all segmentations up to each position
        for end in range(1, len(word) + 1):
            starts = list[int]()
            ids = list[int]()
            values = list[float]()
            for start in range(max(0, end - self._longest), end):
                piece = self._pieces.get(word[start:end])
                if piece is not None and forward[start] > NEVER:
                    starts.append(start)
                    ids.append(piece[0])
                    values.append(forward[start] + piece[1])
            highest = max(values, default=NEVER)
            sums = list(accumulate(math.exp(value - highest) for value in values))
            if sums:
                highest += math.log(sums[-1])
            forward.append(highest)
            table.append((starts, ids, sums))
        return table


class _Bpe:
    """Merges the neighbours with the highest score, repeatedly.

    It skips a merge for good with probability `amount`.
    """

    def __init__(self, ids: dict[str, int], scores: dict[str, float], amount: float) -> None:
        self._ids = ids
        self._amount = amount
        self._ranks = {name: -score for name, score in scores.items()}

    def __call__(self, word: str, rng: random.Random) -> list[int]:
        parts = list(word)
        left_out = math.inf
        ranks = [self._ranks.get(left + right, left_out) for left, right in pairwise(parts)]
        while ranks and (best := min(ranks)) < left_out:
            at = ranks.index(best)
            if rng.random() < self._amount:
                ranks[at] = left_out
                continue
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
            del ranks[at]
            if at > 0:
                ranks[at - 1] = self._ranks.get(parts[at - 1] + parts[at], left_out)
            if at < len(ranks):
                ranks[at] = self._ranks.get(parts[at] + parts[at + 1], left_out)
        if not self._ids.keys() >= set(parts):
            return []
        return [self._ids[part] for part in parts]


class PieceSampling:
    """Segments an example's source, target or both at random."""

    def __init__(self, sides: Mapping[str, SampledSide]) -> None:
        self._sides = sides

    def __call__(self, example: dict[str, Any], seed: int) -> dict[str, Any]:
        """Return the example with new segmentations, drawn from the seed."""
        drawn = dict(example)
        for name, side in self._sides.items():
            drawn[name] = side.drawn(example[name], seed + SIDES.index(name))
        return drawn


def sampling_of(
    args: Namespace, vocabulary: Vocabulary, source: Dictionary, target: Dictionary, folder: str
) -> PieceSampling:
    """Return the sampling of `--sample-pieces` on the sides of `--sample-pieces-of`."""
    dictionaries = dict(zip(SIDES, (source, target), strict=True))
    sides = {}
    for name, dictionary in dictionaries.items():
        if args.sample_pieces_of in ("both", name):
            side = getattr(vocabulary, name)
            longest = getattr(args, f"max_{name}_positions")
            sides[name] = SampledSide(side, dictionary, args.sample_pieces, longest, folder)
    return PieceSampling(sides)
