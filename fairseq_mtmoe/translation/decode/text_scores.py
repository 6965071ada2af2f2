"""Forced decoding: log-probabilities of given translations.

This is fairseq-generate's `--score-reference`. Lines are tokenized as in `mtmoe translate`. A
target has the tokens that a search would write: a language token if the decoder begins with one,
pieces, and the end. No line is split, because the score of its parts would not be the line's.

Letters: `B` sentences, `T` places, `N` tokens of all sentences, `H` width of the features.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.translation.decode.decode import Decoding, Row, batches_of
from fairseq_mtmoe.translation.decode.lines import Lines
from fairseq_mtmoe.translation.decode.text_batches import TextCodec

_LOGITS = 1 << 24  # computed at a time: a batch with a large vocabulary has gigabytes
_CHARACTERS = 4  # per token of the limit: only longer lines are cut by `expect_short`


class Given(NamedTuple):
    """A source sentence and its translation's tokens, from language token to end."""

    row: Row
    written: list[int]


class Forced:
    """Scores pairs of lines in batches; `longest` is the decoder's limit in tokens."""

    def __init__(self, codec: TextCodec, source: str, target: str, longest: int) -> None:
        self._codec = codec
        self._langs = (source, target)
        self._pieces = codec.source(source), codec.target(target)
        self._direction = codec.direction(source, target)
        word = self._direction.first_word
        self._begin = [] if word is None else [word]
        self._rooms = codec.room, longest - 1 - len(self._begin)

    def expect_short(self, side: int, lines: Lines) -> None:
        """Refuse sources (0) or targets (1) that are too long (UserError).

        This checks all text before any is scored. To be fast, it tokenizes only lines with many
        characters; `scores` refuses the others.
        """
        for number, line in enumerate(lines.lines, start=lines.first):
            if len(line) > self._rooms[side] // _CHARACTERS:
                self._encoded(side, Lines([line], lines.name, number))

    def scores(
        self,
        sources: Lines,
        targets: Lines,
        decoding: Decoding,
        score_all: Callable[[Sequence[Sequence[Given]]], Iterable[list[list[float]]]],
        advance: Callable[[int], object] = lambda count: None,
    ) -> list[list[tuple[int, float]]]:
        """Return each target's tokens with log-probabilities.

        There are none if both lines are empty.

        Args:
            sources, targets: equally many lines (UserError: one is too long).
            decoding: has the batches' sizes.
            score_all: scores batches, in their order.
            advance: called with the number of lines in a batch.
        """
        encoded = zip(self._encoded(0, sources), self._encoded(1, targets), strict=True)
        end = self._codec.task.target_dictionary.eos()
        pairs = []
        for line, (pieces, wanted) in enumerate(encoded):
            if pieces or wanted:
                row = Row(line, self._direction, self._codec.tokens(pieces, *self._langs))
                pairs.append(Given(row, [*self._begin, *wanted, end]))
        scored_tokens: list[list[tuple[int, float]]] = [[] for _ in sources.lines]
        batches = _batches(pairs, decoding)
        for batch, scores in zip(batches, score_all(batches), strict=True):
            for pair, values in zip(batch, scores, strict=True):
                scored_tokens[pair.row.key] = list(zip(pair.written, values, strict=True))
            advance(len(batch))
        return scored_tokens

    def _encoded(self, side: int, lines: Lines) -> list[list[int]]:
        encoded = self._pieces[side].encode(lines.lines)
        for number, pieces in enumerate(encoded, start=lines.first):
            if len(pieces) > self._rooms[side]:
                raise UserError(
                    f"Line {number} of {lines.name} must have at most {self._rooms[side]} tokens, "
                    f"but has {len(pieces)}; leave the pair out, or break both lines up."
                )
        return encoded


def _batches(pairs: Sequence[Given], decoding: Decoding) -> list[list[Given]]:
    sizes = [max(len(pair.row.tokens), len(pair.written)) for pair in pairs]
    batches = []
    for indices in batches_of(sizes, decoding)[::-1]:
        together = [pairs[index] for index in indices]
        batches.append(sorted(together, key=lambda pair: -len(pair.row.tokens)))
    return batches


@torch.no_grad()
def log_probs(
    models: Sequence[Any],
    net_input: dict[str, Any],
    written: Sequence[Sequence[int]],
    begins: int,
    pad: int,
) -> list[list[float]]:
    """Return each written token's natural log-probability, given source and prefix.

    Args:
        models: several are an ensemble, whose probability is their mean.
        net_input: the sources' batch.
        written: tokens of each translation.
        begins: the decoder's first input.
        pad: id of padding.
    """
    lengths = torch.tensor(list(map(len, written)))
    is_written_BT = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
    written_BT = torch.full(is_written_BT.shape, pad)
    written_N = torch.tensor(list(chain.from_iterable(written)))
    written_BT[is_written_BT] = written_N
    first_B1 = torch.full((len(written), 1), begins)
    before_BT = torch.cat([first_B1, written_BT[:, :-1]], 1)
    before_BT = before_BT.masked_fill(~is_written_BT, pad)
    device = net_input["src_tokens"].device
    inputs = {**net_input, "prev_output_tokens": before_BT.to(device)}
    places_BT = is_written_BT.to(device)
    wanted_N = written_N.to(device)
    values = torch.stack([_of_model(model, inputs, places_BT, wanted_N) for model in models])
    mean = (values.logsumexp(0) - math.log(len(models))) if len(models) > 1 else values[0]
    return list(map(Tensor.tolist, torch.split(mean.cpu(), lengths.tolist())))


def _of_model(model: Any, inputs: dict[str, Any], places_BT: Tensor, wanted_N: Tensor) -> Tensor:
    """Return log-probabilities, (N,), in float32; all words' never exist at once."""
    features_NH = model(**inputs, features_only=True)[0][places_BT]
    rows = max(1, _LOGITS // len(model.decoder.dictionary))
    parts = []
    for start in range(0, len(wanted_N), rows):
        some = slice(start, start + rows)
        output = model.decoder.output_layer(features_NH[some].unsqueeze(0)), None
        log_probs_NV = model.get_normalized_probs(output, log_probs=True).squeeze(0)
        parts.append(log_probs_NV.gather(1, wanted_N[some].unsqueeze(1)).squeeze(1))
    return torch.cat(parts)
