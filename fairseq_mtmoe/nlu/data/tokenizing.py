"""Tokenization of examples with an encoder's own tokenizer."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.core.digest import digest_of
from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.nlu.data.reading import Example, keys_of, labels_of
from fairseq_mtmoe.nlu.data.token_runs import Strings, TokenRuns, ends, lengths_of, whole_characters
from fairseq_mtmoe.nlu.data.tokenizer_files import as_user_error, load_tokenizer

logger = logging.getLogger(__name__)

CHUNK = 20_000  # examples tokenized at a time
OFFSETS_CHUNK = 1_000  # texts tokenized at a time with offsets, which take much memory
PADDING = ("[PAD]", "<pad>")  # BERT's and RoBERTa's
WHOLE_TEXT = (0, 1)  # [CLS], in place of a word that was truncated


@dataclass(frozen=True)
class TokenizedSplit:
    """E examples of a split, in S sequences of T tokens in all.

    An example of a ranking has several sequences.
    """

    tokens_T: NDArray[np.int32]  # of all sequences, concatenated
    starts_S: NDArray[np.int64]  # start of each sequence, and the end, (S+1,)
    # The first token of type 1 (BERT's second text); the length without one.
    segment_start_S: NDArray[np.int32]
    row_offsets_E: NDArray[np.int64]  # first sequence of each example, and the end, (E+1,)
    labels_E: NDArray[np.float64]  # as in `Example`; NaN without a label
    # In a ranking 1 for right candidates, 0 for others, NaN if unknown; else (0,).
    is_correct_S: NDArray[np.float32]
    names: Strings  # open ranking: name of each candidate, (S,); labels of words: all W words
    # The tokens of the W words that an example is about: first, one after last, (E, W, 2).
    spans_EW: NDArray[np.int32]
    keys_E: NDArray[np.str_]  # as in `Example`
    num_truncated: int  # truncated sequences
    # Span task, whose sequences are windows: the passage's tokens in each window, first and one
    # after last; number of passage tokens before the window; first and last token of the answer,
    # [CLS] twice if it is not in the window.
    passages_S2: NDArray[np.int32] = field(default_factory=lambda: np.empty((0, 2), np.int32))
    offsets_S: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    answers_S2: NDArray[np.int32] = field(default_factory=lambda: np.empty((0, 2), np.int32))
    num_lost: int = 0  # questions whose answer fits into no window
    passages: Any = None  # `windows.Passages` with the texts
    # Labels of words: each word's first token in its sequence, -1 if truncated or without tokens;
    # the words' labels, NaN without; first word of each example, and the end, (E+1,).
    words_W: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    tags_W: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    word_starts_E: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def has_windows(self) -> bool:
        """Return whether the sequences are windows of a span task."""
        return len(self.passages_S2) > 0

    @property
    def num_rows(self) -> int:
        """Return the number of examples in a dataset, in which each window is one."""
        return len(self.passages_S2) or len(self)

    def __len__(self) -> int:
        return len(self.labels_E)


class OffsetTokens(NamedTuple):
    """A text's tokens, and the start and end of each in the characters of the text."""

    ids: NDArray[np.int32]
    char_offsets_N2: NDArray[np.int32]

    def of_span(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the first and last token of the characters; None without tokens."""
        first = int(np.searchsorted(self.char_offsets_N2[:, 1], start, side="right"))
        last = int(np.searchsorted(self.char_offsets_N2[:, 0], end, side="left")) - 1
        return (first, last) if first <= last else None


class TextTokenizer:
    """Tokenizer by the `tokenizers` library.

    `kept_lengths` truncates sequences of more than `max_length` tokens.
    """

    def __init__(self, serialized: str, max_length: int) -> None:
        if max_length < 8:
            raise_invalid(
                "--max-positions",
                "at least 8, so that words fit between the special tokens",
                max_length,
            )
        self._tokenizer = load_tokenizer(serialized)
        self._text_marks = Marks.of(self._tokenizer.encode("a"))  # around a single text
        self.pair_marks = Marks.of(self._tokenizer.encode("a", "a"))  # around two texts
        padding_ids = [
            token for token in map(self._tokenizer.token_to_id, PADDING) if token is not None
        ]
        if not padding_ids:
            raise UserError(
                f"`tokenizer.json` has no padding token, {' or '.join(PADDING)}: it is not BERT's "
                "or RoBERTa's."
            )
        self.padding = padding_ids[0]
        self.max_length = max_length
        self.fingerprint = digest_of(serialized)

    def token_ids(self, text: str) -> list[int]:
        """Return the ids of a text's tokens, without special tokens."""
        ids: list[int] = self._runs([text])[0].tolist()
        return ids

    def with_offsets(self, texts: Iterable[str]) -> dict[str, OffsetTokens]:
        """Return the tokens with offsets of each different text, without special tokens."""
        tokens: dict[str, OffsetTokens] = {}
        different_texts = list(dict.fromkeys(texts))
        for start in range(0, len(different_texts), OFFSETS_CHUNK):
            chunk = different_texts[start : start + OFFSETS_CHUNK]
            for text, encoding in zip(
                chunk, self._encoded(self._tokenizer.encode_batch, chunk), strict=True
            ):
                char_offsets_N2 = np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2)
                tokens[text] = OffsetTokens(np.array(encoding.ids, dtype=np.int32), char_offsets_N2)
        return tokens

    def _runs(self, texts: Sequence[str]) -> TokenRuns:
        """Return each text's tokens without special tokens."""
        return TokenRuns.of(
            [encoding.ids for encoding in self._encoded(self._tokenizer.encode_batch_fast, texts)]
        )

    def _encoded(self, encode_batch: Callable[..., Any], texts: Sequence[str]) -> Any:
        with as_user_error("`tokenizer.json` must give tokens for any text"):
            return encode_batch(
                [whole_characters(text) for text in texts], add_special_tokens=False
            )

    def tokenize(self, examples: Sequence[Example]) -> TokenizedSplit:
        """Tokenize examples, which must all have the same number of `spans`."""
        chunks = []
        for start in range(0, len(examples), CHUNK):
            chunks.append(self._sequences(examples[start : start + CHUNK]))
        tokens_T, lengths_S, second_S, is_cut_S, spans, words_W = map(
            np.concatenate, zip(*chunks, strict=True)
        )
        candidates = []
        names: list[str] = []
        words = []
        tags: list[float] = []
        for example in examples:
            candidates.append(len(example.candidates))
            names += example.words or example.names
            words.append(len(example.words))
            tags += example.tags or [np.nan] * len(example.words)
        return TokenizedSplit(
            tokens_T=tokens_T,
            starts_S=ends(lengths_S),
            segment_start_S=second_S.astype(np.int32),
            row_offsets_E=ends(candidates),
            labels_E=labels_of(examples),
            is_correct_S=_is_correct(examples),
            names=Strings.of_texts(names),
            words_W=words_W,
            tags_W=np.array(tags, dtype=np.float32),
            word_starts_E=ends(words) if len(words_W) else np.empty(0, dtype=np.int64),
            spans_EW=spans.reshape(len(examples), -1, 2),
            keys_E=keys_of(examples),
            num_truncated=int(is_cut_S.sum()),
        )

    def _sequences(self, examples: Sequence[Example]) -> tuple[NDArray[Any], ...]:
        """Tokenize some examples.

        Return the tokens of their sequences, the lengths of these, where their second text begins,
        whether they are truncated, and the examples' spans and words.
        """
        sequences = list(chain.from_iterable(example.candidates for example in examples))
        number = {text: n for n, text in enumerate(dict.fromkeys(chain.from_iterable(sequences)))}
        runs = self._runs(list(number))
        is_pair_S = lengths_of(sequences) == 2
        texts_S2 = np.array([(number[texts[0]], number[texts[-1]]) for texts in sequences])
        lengths_S2 = runs.lengths_N[texts_S2]
        lengths_S2[~is_pair_S, 1] = 0
        alone, pair = self._text_marks, self.pair_marks
        kept_S2 = kept_lengths(
            lengths_S2, self.max_length - np.where(is_pair_S, pair.size, alone.size)
        )
        # Special tokens and texts alternate; a single text has two runs of special tokens, and
        # nothing after them.
        pool = runs.joined(TokenRuns.of([*alone.runs, *pair.runs]))
        marks_S3 = len(runs) + np.where(is_pair_S[:, None], [2, 3, 4], [0, 1, 1])
        parts_S5 = np.stack(
            [marks_S3[:, 0], texts_S2[:, 0], marks_S3[:, 1], texts_S2[:, 1], marks_S3[:, 2]], axis=1
        )
        sizes_S5 = pool.lengths_N[parts_S5]
        sizes_S5[:, 1::2] = kept_S2
        sizes_S5[~is_pair_S, 3:] = 0
        lengths_S = sizes_S5.sum(1)
        return (
            pool.chosen(parts_S5.ravel(), sizes_S5.ravel()).tokens_T,
            lengths_S,
            np.where(is_pair_S & pair.tells_second, sizes_S5[:, :3].sum(1), lengths_S),
            (kept_S2 < lengths_S2).any(1),
            np.array(self._spans(examples, sizes_S5), dtype=np.int32),
            np.array(self._words(examples, sizes_S5), dtype=np.int32),
        )

    def _spans(
        self, examples: Sequence[Example], sizes_S5: NDArray[np.int64]
    ) -> list[tuple[int, int]]:
        if not examples[0].spans:
            return []
        tokens = self.with_offsets(
            chain.from_iterable(example.candidates[0] for example in examples)
        )
        spans = []
        for example, sizes in zip(examples, sizes_S5.tolist(), strict=True):
            firsts = (sizes[0], sum(sizes[:3]))
            lengths = sizes[1::2]
            for span in example.spans:
                word_tokens = tokens[example.candidates[0][span.text]].of_span(span.start, span.end)
                spans.append(_in_sequence(word_tokens, firsts[span.text], lengths[span.text]))
        return spans

    def _words(self, examples: Sequence[Example], sizes_S5: NDArray[np.int64]) -> list[int]:
        if not examples[0].words:
            return []
        tokens = self.with_offsets(example.candidates[0][0] for example in examples)
        first_tokens = []
        for example, sizes in zip(examples, sizes_S5.tolist(), strict=True):
            text_tokens = tokens[example.candidates[0][0]]
            start = 0
            for word in example.words:
                word_tokens = text_tokens.of_span(start, start + len(word))
                if word_tokens is None or word_tokens[0] >= sizes[1]:
                    first_tokens.append(-1)
                else:
                    first_tokens.append(sizes[0] + word_tokens[0])
                start += len(word) + 1
        return first_tokens


def _is_correct(examples: Sequence[Example]) -> NDArray[np.float32]:
    is_right: list[float] = []
    for example in examples:
        start = len(is_right)
        is_right += [0 if example.right else np.nan] * len(example.candidates)
        for number in example.right:
            is_right[start + number] = 1
    if len(is_right) == len(examples) and not any(example.names for example in examples):
        return np.empty(0, dtype=np.float32)  # no ranking
    return np.array(is_right, dtype=np.float32)


def _in_sequence(word_tokens: tuple[int, int] | None, first: int, length: int) -> tuple[int, int]:
    """Return a word's first token and one after its last.

    `length` tokens of its text begin at `first`.
    """
    if word_tokens is None or word_tokens[0] >= length:
        logger.warning(
            "a word that an example is about is in the truncated part of its text, so [CLS] is "
            "read instead; a higher --max-positions keeps it"
        )
        return WHOLE_TEXT
    return first + word_tokens[0], first + min(word_tokens[1], length - 1) + 1


@dataclass(frozen=True)
class Marks:
    """Special tokens around one text or two: [CLS] before the first, [SEP] after each."""

    runs: list[NDArray[np.int32]]
    tells_second: bool  # the second text's tokens have type 1

    @classmethod
    def of(cls, encoding: Any) -> Self:
        """Return the special tokens of an encoding."""
        text_T = np.array(encoding.sequence_ids, dtype=np.float64)  # NaN: a special token
        bounds: list[int] = []
        for text in range(encoding.n_sequences):
            places = np.flatnonzero(text_T == text)
            bounds += (places[0], places[-1] + 1)
        runs = np.split(np.array(encoding.ids, dtype=np.int32), bounds)
        return cls(runs[::2], 1 in encoding.type_ids)

    @property
    def size(self) -> int:
        """Return the number of special tokens."""
        return sum(map(len, self.runs))


def kept_lengths(lengths_S2: NDArray[np.int64], rooms_S: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of tokens kept of two texts in `rooms_S` tokens, (S, 2).

    The second text may be empty. BERT removes tokens one at a time from the end of the longer text,
    of the second if both are equally long.
    """
    first, second = lengths_S2.T
    # A text with less than half of the room keeps everything, and the other gets the rest.
    kept_first = np.minimum(first, np.maximum(rooms_S - second, rooms_S - rooms_S // 2))
    return np.stack([kept_first, np.minimum(second, rooms_S - kept_first)], axis=1)
