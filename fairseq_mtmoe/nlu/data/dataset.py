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
from torch.nn.utils.rnn import pad_sequence

from fairseq_mtmoe.multitask.mixtures.dataset import Batch, Item
from fairseq_mtmoe.nlu.data.tokenizing import TokenizedSplit

# Fill values that heads know
NO_CANDIDATE = -1  # in place of a row
NO_WORD = -2  # in place of a word's first token


class TaskDataset(FairseqDataset):
    """A split's examples, or a span task's windows.

    `sizes` (E, 1) have, for each example, its number of sequences times the length of the longest.
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
        tokens: list[Tensor] = []
        seconds: list[int] = []
        ids = []
        candidates = []
        examples_by_task: dict[str, list[tuple[Any, Any, Any]]] = {}
        for number, example in items:
            rows_C = len(tokens) + np.arange(len(example["tokens"]))
            values = (rows_C, example["spans"], example["label"])
            examples_by_task.setdefault(self.tasks[number], []).append(values)
            tokens += map(torch.from_numpy, example["tokens"])
            seconds += example["seconds"]
            ids.append(example["id"])
            candidates.append(len(rows_C))
        rows = {}
        spans = {}
        target = {}
        for task, examples in examples_by_task.items():
            rows_E, spans_E, labels_E = zip(*examples, strict=True)
            rows[task] = _filled_up(rows_E, NO_CANDIDATE).long()
            spans[task] = _filled_up(spans_E, NO_WORD).long()
            # It is float64, as with `--bf16` or `--fp16` fairseq rounds float32 to half precision.
            target[task] = _filled_up(labels_E, math.nan)
        lengths_R = torch.tensor(list(map(len, tokens)))
        position = torch.arange(int(lengths_R.max()))
        # 1 from the second text to the end
        segments = (position >= torch.tensor(seconds)[:, None]) & (position < lengths_R[:, None])
        src_tokens = pad_sequence(tokens, batch_first=True, padding_value=self.padding).long()
        return {
            "id": torch.tensor(ids),
            "nsentences": len(ids),
            "ntokens": int(lengths_R.sum()),
            "net_input": {
                "src_tokens": src_tokens,
                "segments": segments.long(),
                "rows": rows,
                "spans": spans,
            },
            "candidates": torch.tensor(candidates),
            "target": target,
        }


def _filled_up(values: Sequence[NDArray[np.generic]], filling: float) -> Tensor:
    """Stack the examples' values, (E, …) float64, filling rows up to the longest."""
    if np.ndim(values[0]) == 0:
        return torch.from_numpy(np.array(values, dtype=np.float64))
    filled = np.full(
        (len(values), max(map(len, values)), *np.shape(values[0])[1:]), filling, dtype=np.float64
    )
    for row, value in zip(filled, values, strict=True):
        row[: len(value)] = value
    return torch.from_numpy(filled)
