"""From what is predicted of the windows of passages to the answers of whole questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from unicodedata import combining

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.nlu.examples import Example
from fairseq_mtmoe.data.nlu.tokenizing import TextTokenizer, TokenizedSplit
from fairseq_mtmoe.data.nlu.windows import placed_tokens


class Passages:
    """The passages of a set. They are read when the first answer is asked for, so that training keeps no texts.

    Args:
        read: gives the examples of the set.
        tokenizer: with which their windows were made.
    """

    def __init__(self, read: Callable[[], Sequence[Example]], tokenizer: TextTokenizer) -> None:
        self._read, self._tokenizer = read, tokenizer

    @cached_property
    def _examples(self) -> Sequence[Example]:
        return self._read()

    @cached_property
    def _places(self) -> dict[str, NDArray[np.int32]]:
        """Where the tokens of each passage stand in it."""
        texts = list(dict.fromkeys(example.candidates[0][1] for example in self._examples))
        tokens = placed_tokens(self._tokenizer, texts)
        return {text: placed.places_N2 for text, placed in zip(texts, tokens, strict=True)}

    @property
    def rights(self) -> list[tuple[str, ...]]:
        """The texts that are right, of each question."""
        return [example.answers for example in self._examples]

    def found(self, split: TokenizedSplit, windows_N: NDArray[np.int64], spans_N3: NDArray[np.float64]) -> list[str]:
        """The text that answers each question: the best span of all windows of its passage.

        It is as the passage has it, in its case and with its accents; empty where nothing in the passage was found.

        Args:
            split: the windows of the set.
            windows_N: numbers of windows, in any order; of equally good spans that of the first window counts.
            spans_N3: of each how good its best span is, and the span's first and last token; [CLS] is none.
        """
        question_N = np.searchsorted(split.firsts_E, windows_N, side="right") - 1
        order = np.lexsort((windows_N, -spans_N3[:, 0], question_N))
        questions, first = np.unique(question_N[order], return_index=True)
        texts = [""] * len(split)
        for question, place in zip(questions.tolist(), order[first].tolist(), strict=True):
            window, tokens = windows_N[place], spans_N3[place, 1:].astype(np.int64)
            start, end = split.passages_S2[window].tolist()
            if start <= tokens[0] <= tokens[1] < end:
                texts[question] = self._text(question, *(tokens - start + split.offsets_S[window]).tolist())
        return texts

    def _text(self, question: int, first: int, last: int) -> str:
        """The characters from one token of a question's passage to another, and accents after them."""
        passage = self._examples[question].candidates[0][1]
        start, end = self._places[passage][[first, last], [0, 1]].tolist()
        while end < len(passage) and combining(passage[end]):
            end += 1
        return passage[start:end]
