"""Tokenized examples as fairseq's datasets, and batches of several tasks' examples.

A batch has a row for each sequence that the encoder reads: one for most examples, several for those of a ranking, whose
examples may have different numbers of candidates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from fairseq.data import FairseqDataset
from numpy.typing import NDArray
from torch import Tensor

from fairseq_mtmoe.data.mixtures.dataset import Batch, Item
from fairseq_mtmoe.data.nlu.tokenizing import TokenizedSplit

NO_CANDIDATE = -1  # in the place of a row
NO_WORD = -2  # in the place of a word's first token; both as heads know them


class TaskDataset(FairseqDataset):
    """The examples of a task's split.

    Attributes:
        sizes: (E, 1) how many tokens an example takes in a batch: of its longest sequence, times their number.
    """

    def __init__(self, split: TokenizedSplit) -> None:
        super().__init__()
        self.split = split
        lengths_S = np.diff(split.starts_S)
        longest_E = np.maximum.reduceat(lengths_S, split.row_offsets_E[:-1])
        self.sizes: NDArray[np.int64] = (longest_E * np.diff(split.row_offsets_E)).reshape(-1, 1)

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """`tokens` and `second` of each sequence, the example's `label` and `spans`.

        The label is a number; or, of a ranking, which of its candidates are right, (C,); or the labels of words, (W,),
        whose first tokens are the spans.
        """
        split = self.split
        first, last = split.row_offsets_E[index], split.row_offsets_E[index + 1]
        sequences = range(first, last)
        return {
            "id": index,
            "tokens": [split.tokens_T[split.starts_S[s] : split.starts_S[s + 1]] for s in sequences],
            "seconds": [int(split.segment_start_S[s]) for s in sequences],
            "label": self._label(index),
            "spans": self._spans(index),
        }

    def _label(self, index: int) -> NDArray[np.floating]:
        split = self.split
        if len(split.word_starts_E):
            words = slice(*split.word_starts_E[index : index + 2])
            return np.where(split.words_W[words] >= 0, split.tags_W[words], np.nan)
        of_one: NDArray[np.floating] = split.labels_E[index]
        return split.is_correct_S[slice(*split.row_offsets_E[index : index + 2])] if len(split.is_correct_S) else of_one

    def _spans(self, index: int) -> NDArray[np.int32]:
        split = self.split
        if not len(split.word_starts_E):
            spans: NDArray[np.int32] = split.spans_EW[index]
            return spans
        first_W = split.words_W[slice(*split.word_starts_E[index : index + 2])]
        return np.stack([first_W, np.where(first_W < 0, first_W, first_W + 1)], axis=1)


class WindowDataset(FairseqDataset):
    """The windows of a span task's split, each of which is an example of its own.

    Attributes:
        sizes: (S, 1) how many tokens a window has.
    """

    def __init__(self, split: TokenizedSplit) -> None:
        super().__init__()
        self.split = split
        self.sizes: NDArray[np.int64] = np.diff(split.starts_S).reshape(-1, 1)

    def __len__(self) -> int:
        return self.split.num_rows

    def __getitem__(self, index: int) -> dict[str, Any]:
        """As of a `TaskDataset`; `spans` has the passage, `label` the first and the last token of the answer."""
        split = self.split
        return {
            "id": index,
            "tokens": [split.tokens_T[split.starts_S[index] : split.starts_S[index + 1]]],
            "seconds": [int(split.segment_start_S[index])],
            "label": split.answers_S2[index],
            "spans": split.passages_S2[index : index + 1],
        }


def dataset_of(split: TokenizedSplit) -> TaskDataset | WindowDataset:
    """The examples of a split, as they stand in batches."""
    return WindowDataset(split) if split.has_windows else TaskDataset(split)


class TaskCollate:
    """Makes a batch of examples of several tasks (see `data.mixtures`)."""

    def __init__(self, padding: int, tasks: Sequence[str]) -> None:
        self.padding = padding
        self.tasks = list(tasks)

    def __call__(
        self, datasets: Sequence[FairseqDataset], items: Sequence[Item], pad_to_length: Mapping[str, int] | None = None
    ) -> Batch:
        """A batch of E examples in R rows: the items in their order.

        `net_input` has `src_tokens` (R, L), `segments` (R, L), the type of each token, and, for each task by its name,
        which has E_t of the examples: `rows` (E_t, C), those of its candidates, and -1 where an example has fewer than
        others; and `spans` (E_t, W, 2), the tokens of the W words that they are about, or of a window's passage.
        `target` has each task's labels, float64: (E_t,); or, of a ranking, (E_t, C): 1 for right candidates, 0 for
        others, NaN where there is none; or, of windows, the first and the last token of the answer (E_t, 2).
        `candidates` (E,) says how many rows each example has.
        """
        examples = [example for _, example in items]
        tokens = [torch.from_numpy(sequence) for example in examples for sequence in example["tokens"]]
        lengths = [len(sequence) for sequence in tokens]
        width = max([*lengths, *(pad_to_length or {}).values()])
        src_tokens = torch.full((len(tokens), width), self.padding, dtype=torch.long)
        for row, sequence in zip(src_tokens, tokens, strict=True):
            row[: len(sequence)] = sequence
        candidates = torch.tensor([len(example["tokens"]) for example in examples])
        rows, spans, target = self._by_task(items, candidates)
        seconds = [second for example in examples for second in example["seconds"]]
        return {
            "id": torch.tensor([example["id"] for example in examples]),
            "nsentences": len(examples),
            "ntokens": sum(lengths),
            "net_input": {
                "src_tokens": src_tokens,
                "segments": _segments(lengths, seconds, width),
                "rows": rows,
                "spans": spans,
            },
            "candidates": candidates,
            "target": target,
        }

    def _by_task(
        self, items: Sequence[Item], candidates: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """Rows, spans and labels of each task's examples."""
        starts = (candidates.cumsum(0) - candidates).tolist()
        of_task: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        for start, (number, example) in zip(starts, items, strict=True):
            of_task.setdefault(self.tasks[number], []).append((start, example))
        rows, spans, target = {}, {}, {}
        for task, examples in of_task.items():
            rows[task] = _filled_up(
                [np.arange(start, start + len(e["tokens"])) for start, e in examples], NO_CANDIDATE
            ).long()
            spans[task] = _filled_up([e["spans"] for _, e in examples], NO_WORD).long()
            # float64: what is float32 fairseq rounds to the type of `--bf16` or `--fp16`, a regression's values, too.
            target[task] = _filled_up([e["label"] for _, e in examples], math.nan)
        return rows, spans, target


def _filled_up(values: Sequence[NDArray[np.generic]], filling: float) -> Tensor:
    """The values of each example, (E, …) float64, filled up to the longest where there are several of each."""
    if all(np.ndim(value) == 0 for value in values):
        return torch.from_numpy(np.array(values, dtype=np.float64))
    filled = np.full((len(values), max(map(len, values)), *np.shape(values[0])[1:]), filling, dtype=np.float64)
    for row, value in zip(filled, values, strict=True):
        row[: len(value)] = value
    return torch.from_numpy(filled)


def _segments(lengths: list[int], seconds: list[int], width: int) -> Tensor:
    """1 from the second text on, to the end of the sequence."""
    place = torch.arange(width)
    return ((place >= torch.tensor(seconds).unsqueeze(1)) & (place < torch.tensor(lengths).unsqueeze(1))).long()
