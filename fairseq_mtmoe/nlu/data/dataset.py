"""Tokenized examples as fairseq datasets, and batches of several tasks' examples.

A batch has a row per sequence.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from fairseq.data import FairseqDataset
from numpy.typing import NDArray
from torch import Tensor

from fairseq_mtmoe.multitask.mixtures.dataset import Batch, Item
from fairseq_mtmoe.nlu.data.tokenizing import TokenizedSplit

# Fill values that heads know
NO_CANDIDATE = -1  # in place of a row
NO_WORD = -2  # in place of a word's first token


class TaskDataset(FairseqDataset):
    """A split's examples, or a span task's windows.

    `sizes` (E, 1) are the longest sequence times the number of sequences.
    """

    def __init__(self, split: TokenizedSplit) -> None:
        super().__init__()
        self.split = split
        self._row_offsets_E = (
            np.arange(split.num_rows + 1) if split.has_windows else split.row_offsets_E
        )
        longest_E = np.maximum.reduceat(np.diff(split.starts_S), self._row_offsets_E[:-1])
        self.sizes: NDArray[np.int64] = (longest_E * np.diff(self._row_offsets_E)).reshape(-1, 1)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return the sequences' `tokens` and `seconds`, and the `label` and `spans`.

        The label is a number. For a ranking it tells which candidates are right, (C,). For labels
        of words it is (W,), and the spans are the words' first tokens. For a window it has the
        answer's first and last token, and the span is the passage's.
        """
        split = self.split
        sequences = slice(*self._row_offsets_E[index : index + 2])
        label: Any
        spans: NDArray[np.int32]
        if split.has_windows:
            label = split.answers_S2[index]
            spans = split.passages_S2[sequences]
        elif len(split.word_starts_E):
            words = slice(*split.word_starts_E[index : index + 2])
            first_W = split.words_W[words]
            label = np.where(first_W >= 0, split.tags_W[words], np.nan)
            spans = np.stack([first_W, np.where(first_W < 0, first_W, first_W + 1)], axis=1)
        else:
            label = (
                split.is_correct_S[sequences] if len(split.is_correct_S) else split.labels_E[index]
            )
            spans = split.spans_EW[index]
        starts = split.starts_S[sequences.start : sequences.stop + 1]
        return {
            "id": index,
            "tokens": [split.tokens_T[start:end] for start, end in pairwise(starts)],
            "seconds": split.segment_start_S[sequences].tolist(),
            "label": label,
            "spans": spans,
        }


class TaskCollate:
    """`Collate` for examples of several tasks with one padding token."""

    def __init__(self, padding: int, tasks: Sequence[str]) -> None:
        self.padding = padding
        self.tasks = list(tasks)

    def __call__(self, datasets: Sequence[FairseqDataset], items: Sequence[Item]) -> Batch:
        """Return a batch of E examples in R rows, in the order of the items.

        `net_input` has `src_tokens` (R, L) and `segments` (R, L), the tokens' types. By task, for
        its E_t examples, it has `rows` (E_t, C), the candidates' rows, filled with -1, and `spans`
        (E_t, W, 2), the tokens of W words or of a window's passage. `target` has each task's
        labels, float64: (E_t,); for a ranking (E_t, C), 1 for right candidates, 0 for others,
        filled with NaN; for windows (E_t, 2), the answer's first and last token. `candidates` (E,)
        is each example's number of rows.
        """
        examples = [example for _, example in items]
        tokens = [
            torch.from_numpy(sequence) for example in examples for sequence in example["tokens"]
        ]
        lengths = [len(sequence) for sequence in tokens]
        width = max(lengths)
        src_tokens = torch.full((len(tokens), width), self.padding, dtype=torch.long)
        for row, sequence in zip(src_tokens, tokens, strict=True):
            row[: len(sequence)] = sequence
        candidates = torch.tensor([len(example["tokens"]) for example in examples])
        rows, spans, target = self._by_task(items, candidates)
        seconds = torch.tensor(
            [second for example in examples for second in example["seconds"]]
        ).unsqueeze(1)
        position = torch.arange(width)
        # 1 from the second text to the end
        segments = (position >= seconds) & (position < torch.tensor(lengths).unsqueeze(1))
        return {
            "id": torch.tensor([example["id"] for example in examples]),
            "nsentences": len(examples),
            "ntokens": sum(lengths),
            "net_input": {
                "src_tokens": src_tokens,
                "segments": segments.long(),
                "rows": rows,
                "spans": spans,
            },
            "candidates": candidates,
            "target": target,
        }

    def _by_task(
        self, items: Sequence[Item], candidates: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        starts = (candidates.cumsum(0) - candidates).tolist()
        examples_by_task: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        for start, (number, example) in zip(starts, items, strict=True):
            examples_by_task.setdefault(self.tasks[number], []).append((start, example))
        rows = {}
        spans = {}
        target = {}
        for task, examples in examples_by_task.items():
            numbers = [
                np.arange(start, start + len(example["tokens"])) for start, example in examples
            ]
            rows[task] = _filled_up(numbers, NO_CANDIDATE).long()
            spans[task] = _filled_up([example["spans"] for _, example in examples], NO_WORD).long()
            # It is float64, as with `--bf16` or `--fp16` fairseq rounds float32 to half precision.
            target[task] = _filled_up([example["label"] for _, example in examples], math.nan)
        return rows, spans, target


def _filled_up(values: Sequence[NDArray[np.generic]], filling: float) -> Tensor:
    """Stack the examples' values, (E, …) float64, filling rows up to the longest."""
    if all(np.ndim(value) == 0 for value in values):
        return torch.from_numpy(np.array(values, dtype=np.float64))
    filled = np.full(
        (len(values), max(map(len, values)), *np.shape(values[0])[1:]), filling, dtype=np.float64
    )
    for row, value in zip(filled, values, strict=True):
        row[: len(value)] = value
    return torch.from_numpy(filled)
