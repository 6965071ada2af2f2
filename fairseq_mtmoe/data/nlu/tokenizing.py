"""From texts to tokens, by the tokenizer that an encoder was trained with."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.nlu.examples import Example, Span
from fairseq_mtmoe.data.nlu.tokenizer_files import check_installed
from fairseq_mtmoe.errors import UserError, first_line, must_be

if TYPE_CHECKING:
    from tokenizers import Encoding

logger = logging.getLogger(__name__)

CHUNK = 20_000  # examples that are tokenized at a time
PADDING = ("[PAD]", "<pad>")  # BERT's and RoBERTa's
WHOLE_TEXT = (0, 1)  # [CLS], in the place of a word that is cut off


@dataclass(frozen=True)
class TokenizedSplit:
    """The examples of a split: E of them, of S sequences (a ranking has several each), of T tokens.

    Attributes:
        tokens_T: of all sequences, one after the other.
        starts_S: where each sequence begins in them, and the last one ends, (S+1,).
        seconds_S: in each sequence, the first token of type 1 (BERT's second text); its length where there is none.
        firsts_E: the first sequence of each example, and the end, (E+1,).
        labels_E: as in `Example`; NaN where there is none.
        spans_EW: the tokens of the W words that an example is about: first, and the one after the last, (E, W, 2).
        keys_E: as in `Example`.
        num_truncated: sequences that were too long when the split was tokenized.
    """

    tokens_T: NDArray[np.int32]
    starts_S: NDArray[np.int64]
    seconds_S: NDArray[np.int32]
    firsts_E: NDArray[np.int64]
    labels_E: NDArray[np.float64]
    spans_EW: NDArray[np.int32]
    keys_E: NDArray[np.str_]
    num_truncated: int

    def __len__(self) -> int:
        return len(self.labels_E)


class TextTokenizer:
    """A tokenizer of the `tokenizers` library, with a limit on length.

    A text that several examples share, such as a passage, is tokenized once.

    Args:
        serialized: what stands in its `tokenizer.json`.
        max_length: tokens of a sequence, the marks of its beginning and end included; what is longer loses tokens as in
            BERT (see `kept_lengths`).

    Raises:
        UserError: `serialized` is no tokenizer, or the limit leaves no room for text.
    """

    def __init__(self, serialized: str, max_length: int) -> None:
        if max_length < 8:
            must_be("--max-positions", "at least 8, room for some words between the marks", max_length)
        check_installed()
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_str(serialized)
        except Exception as error:  # the library raises nothing more precise
            raise UserError(f"`tokenizer.json` must be one of `tokenizers`, but {first_line(error)}.") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()  # whose rule is not quite BERT's
        self._marks = [Marks.of(self._tokenizer.encode("a", pair)) for pair in (None, "a")]
        self.padding = self._padding()
        self.max_length = max_length
        self.fingerprint = hashlib.sha256(serialized.encode()).hexdigest()

    def _padding(self) -> int:
        """The token that fills sequences up."""
        found = [token for name in PADDING if (token := self._tokenizer.token_to_id(name)) is not None]
        if not found:
            raise UserError(f"`tokenizer.json` must have one of the tokens {' or '.join(PADDING)}, but has none.")
        return found[0]

    def tokenize(self, examples: Sequence[Example]) -> TokenizedSplit:
        """The tokens of examples, all of which are about equally many words."""
        tokens: list[NDArray[np.int32]] = []
        seconds: list[int] = []
        spans: list[list[tuple[int, int]]] = []
        num_truncated = 0
        for start in range(0, len(examples), CHUNK):
            chunk = examples[start : start + CHUNK]
            encoded = self._encoded(chunk)
            for example in chunk:
                for texts in example.candidates:
                    marks, parts = self._marks[len(texts) - 1], [encoded[text].tokens_T for text in texts]
                    lengths = kept_lengths([len(part) for part in parts], self.max_length - marks.size)
                    kept = [part[:length] for part, length in zip(parts, lengths, strict=True)]
                    num_truncated += sum(lengths) < sum(map(len, parts))
                    tokens.append(marks.around(kept))
                    seconds.append(marks.second(lengths))
                if example.spans:
                    firsts = self._marks[len(example.candidates[0]) - 1].firsts(lengths)
                    spans.append([encoded[texts[span.text]].words(span, firsts, lengths) for span in example.spans])
        labels = [np.nan if example.label is None else example.label for example in examples]
        return TokenizedSplit(
            tokens_T=np.concatenate(tokens),
            starts_S=ends([len(sequence) for sequence in tokens]),
            seconds_S=np.array(seconds, dtype=np.int32),
            firsts_E=ends([len(example.candidates) for example in examples]),
            labels_E=np.array(labels),
            spans_EW=np.array(spans, dtype=np.int32).reshape(len(examples), -1, 2),
            keys_E=np.array([example.key for example in examples]),
            num_truncated=num_truncated,
        )

    def _encoded(self, examples: Sequence[Example]) -> dict[str, EncodedText]:
        """The tokens of each text of examples."""
        texts = list(dict.fromkeys(chain.from_iterable(chain.from_iterable(e.candidates for e in examples))))
        has_spans = bool(examples[0].spans)
        encode = self._tokenizer.encode_batch if has_spans else self._tokenizer.encode_batch_fast
        encodings = encode(texts, add_special_tokens=False)
        return {
            text: EncodedText(np.array(encoding.ids, dtype=np.int32), encoding if has_spans else None)
            for text, encoding in zip(texts, encodings, strict=True)
        }


@dataclass(frozen=True)
class EncodedText:
    """A text alone: its tokens, and their places in it where these are asked for."""

    tokens_T: NDArray[np.int32]
    encoding: Encoding | None

    def words(self, span: Span, firsts: Sequence[int], lengths: Sequence[int]) -> tuple[int, int]:
        """The tokens of a word in a sequence of texts, which begin at `firsts` and keep so many tokens."""
        assert self.encoding is not None
        tokens = [self.encoding.char_to_token(place) for place in range(span.start, span.end)]
        kept = [token for token in tokens if token is not None and token < lengths[span.text]]
        if not kept:
            logger.warning("a word that an example is about was cut off with the end of its text: [CLS] stands for it")
            return WHOLE_TEXT
        return firsts[span.text] + kept[0], firsts[span.text] + kept[-1] + 1


@dataclass(frozen=True)
class Marks:
    """The tokens around one text or two: [CLS] before the first, [SEP] after each.

    Attributes:
        runs: the tokens before, between and after the texts.
        tells_second: whether the second text's tokens are of type 1.
    """

    runs: list[NDArray[np.int32]]
    tells_second: bool

    @classmethod
    def of(cls, encoding: Encoding) -> Marks:
        """Those that a sequence has."""
        places = list(zip(encoding.sequence_ids, encoding.ids, strict=True))
        groups = [(text, [token for _, token in group]) for text, group in groupby(places, lambda place: place[0])]
        runs = {n: np.array(tokens, dtype=np.int32) for n, (text, tokens) in enumerate(groups) if text is None}
        texts = [n for n, (text, _) in enumerate(groups) if text is not None]
        none = np.empty(0, dtype=np.int32)
        return cls([runs.get(n, none) for n in (texts[0] - 1, *(n + 1 for n in texts))], 1 in encoding.type_ids)

    @property
    def size(self) -> int:
        """How many tokens they are."""
        return sum(map(len, self.runs))

    def around(self, parts: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
        """The sequence of texts."""
        return np.concatenate([self.runs[0], *chain.from_iterable(zip(parts, self.runs[1:], strict=True))])

    def firsts(self, lengths: Sequence[int]) -> list[int]:
        """Where texts of these lengths begin."""
        starts = [len(self.runs[0])]
        for length, run in zip(lengths, self.runs[1:], strict=True):
            starts.append(starts[-1] + length + len(run))
        return starts[:-1]

    def second(self, lengths: Sequence[int]) -> int:
        """The first token of type 1; the length of the sequence if there is none."""
        if self.tells_second:
            return self.firsts(lengths)[1]
        return sum(lengths) + self.size


def kept_lengths(lengths: Sequence[int], room: int) -> list[int]:
    """How many tokens are kept of one text or two.

    BERT takes tokens one at a time from the end of the longer text, of the second one where both are equally long.
    """
    if len(lengths) == 1:
        return [min(lengths[0], room)]
    first, second = lengths
    if first <= room // 2:
        return [first, min(second, room - first)]
    if second <= room // 2:
        return [min(first, room - second), second]
    return [room - room // 2, room // 2] if first + second > room else [first, second]


def ends(lengths: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of the parts of these lengths begins, one after the other, and the last one ends."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
