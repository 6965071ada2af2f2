"""From texts to tokens, by the tokenizer that an encoder was trained with."""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.nlu.reading import Example, Span
from fairseq_mtmoe.data.nlu.token_runs import Strings, TokenRuns, encoder_for, ends, lengths_of, whole_characters
from fairseq_mtmoe.data.nlu.tokenizer_files import guarded, load_tokenizer
from fairseq_mtmoe.errors import UserError, raise_invalid

logger = logging.getLogger(__name__)

CHUNK = 20_000  # examples that are tokenized at a time
PADDING = ("[PAD]", "<pad>")  # BERT's and RoBERTa's
WHOLE_TEXT = (0, 1)  # [CLS], instead of a word that is cut off


@dataclass(frozen=True)
class TokenizedSplit:
    """The examples of a split: E of them, of S sequences (a ranking has several each), of T tokens."""

    tokens_T: NDArray[np.int32]  # of all sequences, one after the other
    starts_S: NDArray[np.int64]  # where each sequence begins in them, and the last one ends, (S+1,)
    segment_start_S: NDArray[np.int32]  # each one's first token of type 1 (BERT's second text); its length if none is
    row_offsets_E: NDArray[np.int64]  # the first sequence of each example, and the end, (E+1,)
    labels_E: NDArray[np.float64]  # as in `Example`; NaN where there is none
    is_correct_S: NDArray[np.float32]  # of a ranking: which candidates are right, 1 or 0, NaN where unknown; else (0,)
    names: Strings  # of an open ranking what each candidate is called, (S,); where words have labels all W words
    spans_EW: NDArray[np.int32]  # the tokens of the W words that an example is about: first, one after last, (E, W, 2)
    keys_E: NDArray[np.str_]  # as in `Example`
    num_truncated: int  # sequences that were too long when the split was tokenized
    # Of a span task, whose sequences are windows: the passage's tokens in a window, first and one after last;
    # the tokens before a window; the answer's first and last token, [CLS] twice where it is not there.
    passages_S2: NDArray[np.int32] = field(default_factory=lambda: np.empty((0, 2), np.int32))
    offsets_S: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    answers_S2: NDArray[np.int32] = field(default_factory=lambda: np.empty((0, 2), np.int32))
    num_lost: int = 0  # questions whose answer no window has as a whole
    passages: Any = None  # the `windows.Passages` that have the texts
    # Where words have labels: each word's first token in its sequence, -1 if it was cut off or nothing is left of it;
    # their labels, NaN where there is none; the first word of each example, and the end, (E+1,).
    words_W: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    tags_W: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    word_starts_E: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def has_windows(self) -> bool:
        return len(self.passages_S2) > 0

    @property
    def num_rows(self) -> int:
        """How many examples a data set of it has: windows are one each."""
        return len(self.passages_S2) or len(self)

    def __len__(self) -> int:
        return len(self.labels_E)


class TextTokenizer:
    """A tokenizer of the `tokenizers` library; sequences of over `max_length` tokens are cut by `kept_lengths`."""

    def __init__(self, serialized: str, max_length: int) -> None:
        if max_length < 8:
            raise_invalid("--max-positions", "at least 8, room for some words between the marks", max_length)
        self._tokenizer = load_tokenizer(serialized)
        self._encode = encoder_for(self._tokenizer)
        self._marks = [Marks.of(self._tokenizer.encode("a", pair)) for pair in (None, "a")]
        self.pair_marks = self._marks[1]  # around two texts
        least = max(mark.size for mark in self._marks) + 2
        if least > max_length:
            raise_invalid("--max-positions", f"at least {least}, room for the tokenizer's marks and a text", max_length)
        found = [token for name in PADDING if (token := self._tokenizer.token_to_id(name)) is not None]
        if not found:
            raise UserError(f"`tokenizer.json` must have one of the tokens {' or '.join(PADDING)}, but has none.")
        self.padding = found[0]  # fills sequences up
        self.max_length = max_length
        self.fingerprint = hashlib.sha256(serialized.encode()).hexdigest()

    def numbers(self, text: str) -> list[int]:
        found: list[int] = self.encodings([text])[0].ids
        return found

    def encodings(self, texts: Sequence[str]) -> list[Any]:
        """The library's account of texts, without marks: their tokens, and where these stand."""
        with guarded("`tokenizer.json` must make tokens of any text"):
            found = self._tokenizer.encode_batch([whole_characters(text) for text in texts], add_special_tokens=False)
        return list(found)

    def tokenize(self, examples: Sequence[Example]) -> TokenizedSplit:
        """The tokens of examples, all of which are about equally many words."""
        chunks = [self._sequences(examples[start : start + CHUNK]) for start in range(0, len(examples), CHUNK)]
        made = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
        tags = (example.tags or (np.nan,) * len(example.words) for example in examples)
        words = lengths_of([example.words for example in examples])
        return TokenizedSplit(
            tokens_T=made["tokens"],
            starts_S=ends(made["lengths"]),
            segment_start_S=made["second"].astype(np.int32),
            row_offsets_E=ends(lengths_of([example.candidates for example in examples])),
            labels_E=np.array([np.nan if example.label is None else example.label for example in examples]),
            is_correct_S=_is_correct(examples),
            names=Strings.of_texts(list(chain.from_iterable(example.words or example.names for example in examples))),
            words_W=made["words"],
            tags_W=np.fromiter(chain.from_iterable(tags), dtype=np.float32),
            word_starts_E=ends(words) if examples[0].words else np.empty(0, dtype=np.int64),
            spans_EW=made["spans"].reshape(len(examples), -1, 2),
            keys_E=np.array([example.key for example in examples]),
            num_truncated=int(made["is_cut"].sum()),
        )

    def _sequences(self, examples: Sequence[Example]) -> dict[str, NDArray[Any]]:
        """Those of a part of the examples: `tokens`, `lengths`, `second`, `is_cut`, `spans` and `words`."""
        sequences = list(chain.from_iterable(example.candidates for example in examples))
        number = {text: n for n, text in enumerate(dict.fromkeys(chain.from_iterable(sequences)))}
        runs = self._encode(list(number))
        pair_S = np.fromiter((len(texts) == 2 for texts in sequences), dtype=bool, count=len(sequences))
        texts_S2 = np.array([(number[texts[0]], number[texts[-1]]) for texts in sequences])
        lengths_S2 = runs.lengths_N[texts_S2]
        lengths_S2[~pair_S, 1] = 0
        marks, kind_S = self._marks, pair_S.astype(int)
        kept_S2 = kept_lengths(lengths_S2, self.max_length - np.array([mark.size for mark in marks])[kind_S])
        # Marks and texts take turns; one text has two marks, and nothing afterwards.
        pool = runs.joined(TokenRuns.of([run.tolist() for mark in marks for run in mark.runs]))
        marks_S3 = len(runs) + np.array([[0, 1, 1], [2, 3, 4]])[kind_S]
        parts_S5 = np.stack([marks_S3[:, 0], texts_S2[:, 0], marks_S3[:, 1], texts_S2[:, 1], marks_S3[:, 2]], axis=1)
        sizes_S5 = pool.lengths_N[parts_S5]
        sizes_S5[:, 1::2] = kept_S2
        sizes_S5[~pair_S, 3:] = 0
        lengths_S = sizes_S5.sum(1)
        tells_S = np.array([mark.tells_second for mark in marks])[kind_S]
        return {
            "tokens": pool.chosen(parts_S5.ravel(), sizes_S5.ravel()).tokens_T,
            "lengths": lengths_S,
            "second": np.where(tells_S, sizes_S5[:, :3].sum(1), lengths_S),
            "is_cut": (kept_S2 < lengths_S2).any(1),
            "spans": np.array(self._spans(examples, sizes_S5), dtype=np.int32),
            "words": np.array(self._words(examples, sizes_S5), dtype=np.int32),
        }

    def _spans(self, examples: Sequence[Example], sizes_S5: NDArray[np.int64]) -> list[tuple[int, int]]:
        if not examples[0].spans:
            return []
        texts = list(dict.fromkeys(chain.from_iterable(example.candidates[0] for example in examples)))
        encodings = dict(zip(texts, self.encodings(texts), strict=True))
        spans = []
        for example, sizes in zip(examples, sizes_S5.tolist(), strict=True):
            firsts, lengths = (sizes[0], sum(sizes[:3])), sizes[1::2]
            for span in example.spans:
                encoding = encodings[example.candidates[0][span.text]]
                spans.append(_tokens_of(span, encoding, firsts[span.text], lengths[span.text]))
        return spans

    def _words(self, examples: Sequence[Example], sizes_S5: NDArray[np.int64]) -> list[int]:
        if not examples[0].words:
            return []
        encodings = self.encodings([example.candidates[0][0] for example in examples])
        found: list[int] = []
        for example, encoding, sizes in zip(examples, encodings, sizes_S5.tolist(), strict=True):
            firsts = first_tokens(example.words, encoding.offsets)
            found += [sizes[0] + token if 0 <= token < sizes[1] else -1 for token in firsts]
        return found


def first_tokens(words: Sequence[str], offsets: Sequence[tuple[int, int]]) -> list[int]:
    """The first token of each word of a text, by the characters of its tokens; -1 where a word has none."""
    lengths_W = lengths_of(words)
    starts_W = ends(lengths_W + 1)[:-1]
    char_offsets_N2 = np.array([*offsets, (np.iinfo(np.int64).max,) * 2], dtype=np.int64)
    first_W = np.searchsorted(char_offsets_N2[:, 1], starts_W, side="right")
    found: list[int] = np.where(char_offsets_N2[first_W, 0] < starts_W + lengths_W, first_W, -1).tolist()
    return found


def _is_correct(examples: Sequence[Example]) -> NDArray[np.float32]:
    if all(len(example.candidates) == 1 and not example.names for example in examples):
        return np.empty(0, dtype=np.float32)
    found = (
        [float(n in example.right) if example.right else np.nan for n in range(len(example.candidates))]
        for example in examples
    )
    return np.fromiter(chain.from_iterable(found), dtype=np.float32)


def _tokens_of(span: Span, encoding: Any, first: int, length: int) -> tuple[int, int]:
    """The tokens of a word in a sequence, of whose text `length` tokens are kept from `first` on."""
    tokens = [encoding.char_to_token(at) for at in range(span.start, span.end)]
    kept = [token for token in tokens if token is not None and token < length]
    if not kept:
        logger.warning("a word that an example is about was cut off with the end of its text: [CLS] stands for it")
        return WHOLE_TEXT
    return first + kept[0], first + kept[-1] + 1


@dataclass(frozen=True)
class Marks:
    """The tokens around one text or two: [CLS] before the first, [SEP] after each; `runs` are those in order."""

    runs: list[NDArray[np.int32]]
    tells_second: bool  # the second text's tokens are of type 1

    @classmethod
    def of(cls, encoding: Any) -> Self:
        pairs = list(zip(encoding.sequence_ids, encoding.ids, strict=True))
        groups = [(text, [token for _, token in group]) for text, group in groupby(pairs, lambda pair: pair[0])]
        runs = {n: np.array(tokens, dtype=np.int32) for n, (text, tokens) in enumerate(groups) if text is None}
        texts = [n for n, (text, _) in enumerate(groups) if text is not None]
        none = np.empty(0, dtype=np.int32)
        return cls([runs.get(n, none) for n in (texts[0] - 1, *(n + 1 for n in texts))], 1 in encoding.type_ids)

    @property
    def size(self) -> int:
        return sum(map(len, self.runs))


def kept_lengths(lengths_S2: NDArray[np.int64], rooms_S: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many tokens are kept of two texts each, the second of which may have none, where there is so much room.

    BERT takes tokens one at a time from the end of the longer text, of the second one where both are equally long.
    """
    first, second = lengths_S2.T
    # Who has less than half of the room keeps everything, and the other one gets the rest.
    kept_first = np.minimum(first, np.maximum(rooms_S - second, rooms_S - rooms_S // 2))
    return np.stack([kept_first, np.minimum(second, rooms_S - kept_first)], axis=1)
