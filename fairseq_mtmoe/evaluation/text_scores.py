"""Forced decoding: log-probabilities of given translations.

This is fairseq-generate's `--score-reference`. Lines are cut as in `mtmoe translate`. A target has the tokens that a
search would write: a language token if the decoder begins with one, pieces, and the end. No line is split, as the
parts' score would not be the line's.

Letters: `B` sentences, `T` places, `N` tokens of all sentences, `H` width of the features.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.evaluation.mixing import cut, limits_of
from fairseq_mtmoe.evaluation.text_batches import Forms, Pieces, Row
from fairseq_mtmoe.evaluation.translator import Decoding, Sentence

_LOGITS = 1 << 24  # computed at a time: a batch with a large vocabulary has gigabytes
_CHARACTERS = 4  # per token of the limit: only longer lines are cut by `expect_short`


class Given(NamedTuple):
    """A source sentence and its translation's tokens, from language token to end."""

    row: Row
    written: list[int]


@dataclass
class Pairs:
    """Pairs of lines scored together; `batches` have the longest sources first."""

    lines: int
    batches: list[list[Given]]
    _found: dict[int, list[tuple[int, float]]] = field(default_factory=dict)

    def add(self, batch: int, found: Sequence[Sequence[float]]) -> None:
        """Store the log-probabilities of a batch's tokens."""
        for one, values in zip(self.batches[batch], found, strict=True):
            self._found[one.row.line] = list(zip(one.written, values, strict=True))

    def finished(self) -> list[list[tuple[int, float]]]:
        """Return each line's tokens with log-probabilities; none if both lines are empty."""
        return [self._found.get(line, []) for line in range(self.lines)]


class Forced:
    """Makes batches of pairs of lines; `longest` is the decoder's limit in tokens."""

    def __init__(self, forms: Forms, source: str, target: str, longest: int) -> None:
        self._forms, self._langs = forms, (source, target)
        self._pieces: tuple[Pieces, Pieces] = forms.source(source), forms.target(target)
        token = forms.first_token(target)
        self._begin = [] if token is None or forms.replaces_ends else [token]
        self._rooms = forms.room, longest - 1 - len(self._begin)

    def expect_short(self, side: int, lines: Sequence[str], name: str, first: int) -> None:
        """Refuse sources (0) or targets (1) that are too long (UserError).

        Only lines with many characters are cut. `group` refuses all; this checks much text before it is scored.
        """
        for number, line in enumerate(lines, start=first):
            if len(line) > self._rooms[side] // _CHARACTERS:
                self._encoded(side, [line], name, number)

    def group(
        self, sources: Sequence[str], targets: Sequence[str], decoding: Decoding,
        names: tuple[str, str] = ("the sources", "the targets"), first: int = 1,
    ) -> Pairs:  # fmt: skip
        """Return the batches of equally many sources and targets.

        Raises:
            UserError: a line is too long for the model; `names` and `first` say which.
        """
        read, written = (
            self._encoded(side, lines, names[side], first) for side, lines in enumerate((sources, targets))
        )
        end = self._forms.task.target_dictionary.eos()
        given = [
            Given(Row(line, 0, *self._langs, self._forms.tokens(pieces, *self._langs)), [*self._begin, *wanted, end])
            for line, (pieces, wanted) in enumerate(zip(read, written, strict=True)) if pieces or wanted
        ]  # fmt: skip
        return Pairs(len(sources), self._batches(given, decoding))

    def _encoded(self, side: int, lines: Sequence[str], name: str, first: int) -> list[list[int]]:
        found = self._pieces[side].encode(lines)
        for number, pieces in enumerate(found, start=first):
            if len(pieces) > self._rooms[side]:
                raise UserError(
                    f"Line {number} of {name} must have at most {self._rooms[side]} tokens, but has {len(pieces)}; "
                    "leave the pair out, or break both lines up."
                )
        return found

    @staticmethod
    def _batches(given: Sequence[Given], decoding: Decoding) -> list[list[Given]]:
        sizes = [
            Sentence("", number, len(one.row.tokens), max(len(one.row.tokens), len(one.written)))
            for number, one in enumerate(given)
        ]
        batches = cut(sizes, *limits_of(decoding)) if sizes else ()
        in_order = [
            sorted((given[one.number] for one in batch), key=lambda one: -len(one.row.tokens)) for batch in batches
        ]
        return in_order[::-1]


@torch.no_grad()
def log_probs(
    models: Sequence[Any], net_input: dict[str, Any], written: Sequence[Sequence[int]], begins: int, pad: int
) -> list[list[float]]:
    """Return each written token's natural log-probability, given source and prefix.

    Args:
        models: several are an ensemble, whose probability is their mean.
        net_input: the sources' batch.
        written: tokens of each translation.
        begins: the decoder's first input.
        pad: id of padding.
    """
    lengths = torch.tensor([len(tokens) for tokens in written])
    is_written_BT = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
    written_BT = torch.full(is_written_BT.shape, pad)
    written_N = torch.tensor([token for tokens in written for token in tokens])
    written_BT[is_written_BT] = written_N
    before_BT = torch.cat([torch.full((len(written), 1), begins), written_BT[:, :-1]], 1).masked_fill(
        ~is_written_BT, pad
    )
    device = net_input["src_tokens"].device
    inputs = {**net_input, "prev_output_tokens": before_BT.to(device)}
    places_BT, wanted_N = is_written_BT.to(device), written_N.to(device)
    found = torch.stack([_of_model(model, inputs, places_BT, wanted_N) for model in models])
    values = (found.logsumexp(0) - math.log(len(models))) if len(models) > 1 else found[0]
    return [each.tolist() for each in torch.split(values.cpu(), lengths.tolist())]


def _of_model(model: Any, inputs: dict[str, Any], places_BT: Tensor, wanted_N: Tensor) -> Tensor:
    """(N,) Return log-probabilities in float32; all words' never exist at once."""
    features_NH = model(**inputs, features_only=True)[0][places_BT]
    rows = max(1, _LOGITS // len(model.decoder.dictionary))
    found = []
    for start in range(0, len(wanted_N), rows):
        some = slice(start, start + rows)
        output = model.decoder.output_layer(features_NH[some].unsqueeze(0)), None
        log_probs_NV = model.get_normalized_probs(output, log_probs=True).squeeze(0)
        found.append(log_probs_NV.gather(1, wanted_N[some].unsqueeze(1)).squeeze(1))
    return torch.cat(found)
