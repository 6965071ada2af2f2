"""Split questions about long passages into windows that fit an encoder.

Each window of a passage is a sequence. Windows are BERT's (Devlin et al., 2019, §4.2;
`run_squad.py`): the question, and as much of the passage as fits, from every `stride`-th token on.
In training, the answer of a window that lacks part of it is [CLS].
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain
from unicodedata import combining

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.nlu.data.reading import Example, keys_of, labels_of
from fairseq_mtmoe.nlu.data.token_runs import Strings, ends, lengths_of
from fairseq_mtmoe.nlu.data.tokenizing import OFFSETS_CHUNK, TextTokenizer, TokenizedSplit

STRIDE = 128  # as in BERT
LONGEST_QUESTION = 64  # tokens, as in BERT; also at most half of the room
AT_FIRST = (0, 0)  # [CLS], for an answer that is not in the window


def longest_question(tokenizer: TextTokenizer) -> int:
    """Return the number of tokens to which questions are truncated."""
    return min(LONGEST_QUESTION, (tokenizer.max_length - tokenizer.pair_marks.size) // 2)


def tokenize_windows(
    tokenizer: TextTokenizer, examples: Sequence[Example], stride: int | None
) -> TokenizedSplit:
    """Tokenize questions with windows of their passages; None: the default `stride`."""
    marks = tokenizer.pair_marks
    longest = longest_question(tokenizer)
    before, between, after = marks.runs
    runs = []
    offsets: list[int] = []
    num_windows = []
    passages = []
    answers = []
    num_truncated = num_lost = 0
    for chunk in range(0, len(examples), OFFSETS_CHUNK):
        asked = examples[chunk : chunk + OFFSETS_CHUNK]
        tokens = tokenizer.with_offsets(
            chain.from_iterable(example.candidates[0] for example in asked)
        )
        for example in asked:
            question, passage = map(tokens.__getitem__, example.candidates[0])
            kept = question.ids[:longest]
            room = tokenizer.max_length - marks.size - len(kept)
            step = min(stride or STRIDE, max(room // 2, 1))
            starts = range(0, max(len(passage.ids) - room, 0) + step, step)
            first = len(before) + len(kept) + len(between)
            token_spans = (passage.of_span(span.start, span.end) for span in example.spans)
            spans = list(filter(None, token_spans))
            for start in starts:
                part = passage.ids[start : start + room]
                answer = AT_FIRST
                for a, b in reversed(spans):  # of several the first one counts
                    if a >= start and b < start + len(part):
                        answer = (first + a - start, first + b - start)
                answers.append(answer)
                runs.append(np.concatenate([before, kept, between, part, after]))
                passages.append((first, first + len(part)))
            offsets += starts
            num_windows.append(len(starts))
            num_truncated += len(kept) < len(question.ids)
            num_lost += bool(spans) and set(answers[-len(starts) :]) == {AT_FIRST}
    passages_S2 = np.array(passages, dtype=np.int32)
    lengths_S = lengths_of(runs)
    return TokenizedSplit(
        tokens_T=np.concatenate(runs),
        starts_S=ends(lengths_S),
        segment_start_S=(passages_S2[:, 0] if marks.tells_second else lengths_S).astype(np.int32),
        row_offsets_E=ends(num_windows),
        labels_E=labels_of(examples),
        is_correct_S=np.empty(0, dtype=np.float32),
        names=Strings.of_texts([]),
        spans_EW=np.empty((len(examples), 0, 2), dtype=np.int32),
        keys_E=keys_of(examples),
        num_truncated=num_truncated,
        passages_S2=passages_S2,
        offsets_S=np.array(offsets, dtype=np.int32),
        answers_S2=np.array(answers, dtype=np.int32),
        num_lost=num_lost,
    )


class Passages:
    """The passages of a set, read at the first use, as training keeps no texts."""

    def __init__(self, read: Callable[[], Sequence[Example]], tokenizer: TextTokenizer) -> None:
        self._read = read
        self._tokenizer = tokenizer

    @cached_property
    def _examples(self) -> Sequence[Example]:
        return self._read()

    @cached_property
    def _offsets(self) -> dict[str, NDArray[np.int32]]:
        """Return the tokens' offsets of each passage."""
        tokens = self._tokenizer.with_offsets(
            example.candidates[0][1] for example in self._examples
        )
        return {text: text_tokens.char_offsets_N2 for text, text_tokens in tokens.items()}

    @property
    def rights(self) -> list[tuple[str, ...]]:
        """Return the right answers of each question."""
        return [example.answers for example in self._examples]

    def found(
        self, split: TokenizedSplit, windows_N: NDArray[np.int64], spans_N3: NDArray[np.float64]
    ) -> list[str]:
        """Return each question's answer, or "".

        It is the best span over its windows, the first of equal ones. `spans_N3` has each window's
        best span: score, first and last token, [CLS] for no answer.
        """
        question_N = np.searchsorted(split.row_offsets_E, windows_N, side="right") - 1
        order = np.lexsort((windows_N, -spans_N3[:, 0], question_N))
        questions, first = np.unique(question_N[order], return_index=True)
        texts = [""] * len(split)
        for question, index in zip(questions.tolist(), order[first].tolist(), strict=True):
            window = windows_N[index]
            tokens = spans_N3[index, 1:].astype(np.int64)
            start, end = split.passages_S2[window].tolist()
            if start <= tokens[0] <= tokens[1] < end:
                texts[question] = self._text(
                    question, *(tokens - start + split.offsets_S[window]).tolist()
                )
        return texts

    def _text(self, question: int, first: int, last: int) -> str:
        """Return a passage's text from one token to another, with accents that follow."""
        passage = self._examples[question].candidates[0][1]
        start, end = self._offsets[passage][[first, last], [0, 1]].tolist()
        while end < len(passage) and combining(passage[end]):
            end += 1
        return passage[start:end]
