"""Examples as texts that a model reads and writes, by the rows' `text_form`: tokenized, as data sets, in batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import FairseqDataset
from fairseq.data.data_utils import collate_tokens
from numpy.typing import NDArray
from torch import Tensor

from fairseq_mtmoe.data.mixtures.dataset import Batch, Item
from fairseq_mtmoe.data.nlu.cache import arrays_of, key_of
from fairseq_mtmoe.data.nlu.examples import Example
from fairseq_mtmoe.data.nlu.pieces import Pieces
from fairseq_mtmoe.data.nlu.reading import read_split, source_files
from fairseq_mtmoe.data.nlu.table import Kind, TaskRow, TextForm
from fairseq_mtmoe.data.nlu.token_runs import TokenRuns, ends

logger = logging.getLogger(__name__)

FORM = 1  # of the files in the cache
TRUE = 1  # the label of a referent


class Texts:
    """The examples of a set. They are read when a text is asked for, so that training keeps none."""

    def __init__(self, read: Callable[[], Sequence[Example]]) -> None:
        self._read = read

    @cached_property
    def examples(self) -> Sequence[Example]:
        """In the order of their numbers."""
        return self._read()


@dataclass(frozen=True)
class TextSplit:
    """The E examples of a split.

    Attributes:
        sources: what is read of each, (E,) runs.
        targets: what is to be written; of examples without labels an end alone.
        labels_E: as in `Example`; NaN where there is none.
        keys_E: as in `Example`.
        num_truncated: texts that were too long when the split was tokenized.
        texts: where the examples themselves are to be had.
    """

    sources: TokenRuns
    targets: TokenRuns
    labels_E: NDArray[np.float64]
    keys_E: NDArray[np.str_]
    num_truncated: int
    texts: Texts

    def __len__(self) -> int:
        return len(self.labels_E)

    @property
    def num_rows(self) -> int:
        """How many examples a data set of it has."""
        return len(self)

    def chosen(self, numbers: NDArray[np.int64]) -> TextSplit:
        """The split of these examples alone."""
        return replace(
            self,
            sources=_runs(self.sources, numbers),
            targets=_runs(self.targets, numbers),
            labels_E=self.labels_E[numbers],
            keys_E=self.keys_E[numbers],
            texts=Texts(lambda: [self.texts.examples[number] for number in numbers.tolist()]),
        )


def _runs(runs: TokenRuns, numbers: NDArray[np.int64]) -> TokenRuns:
    return TokenRuns(runs.chosen(numbers), ends(runs.lengths_N[numbers]))


@dataclass(frozen=True)
class TextTokenizer:
    """How texts become tokens.

    Attributes:
        pieces: of the model.
        max_source: tokens of what is read, the end included; what is longer loses its last.
        max_target: of what is written.
    """

    pieces: Pieces
    max_source: int
    max_target: int


def form_of(row: TaskRow) -> TextForm:
    """How a task is asked in text; the row has one."""
    assert row.text_form is not None
    return row.text_form


def label_texts(row: TaskRow) -> list[str]:
    """What is written for each label of a task; none where the answer is another text, or a number."""
    form = form_of(row)
    return [] if form.referent or not row.labels else list(form.writes or row.labels)


def answer_texts_of(row: TaskRow, example: Example) -> list[str]:
    """The texts that are right; none where nobody knows."""
    form = form_of(row)
    if form.referent:
        return [example.referent]
    if row.kind is Kind.span:
        return list(example.answers)
    if row.is_open:
        return [example.names[number] for number in example.right]
    if example.label is None:
        return []
    return [stepped(example.label, form.step) if row.kind is Kind.regression else label_texts(row)[int(example.label)]]


def stepped(value: float, step: float) -> str:
    """The nearest of the numbers that a model writes, such as 3.2 in steps of 0.2; ties as T5's authors have them."""
    digits = max(len(f"{step:g}".partition(".")[2]), 1)
    per_one = 1 / step
    return f"{round(value * per_one) / per_one:.{digits}f}"


def taught(row: TaskRow, examples: Sequence[Example]) -> list[Example]:
    """What is trained on: as in T5, an example for each of several right candidates, and of referents the true ones."""
    if form_of(row).referent:
        return [example for example in examples if example.label == TRUE]
    if row.is_open:
        return [replace(example, right=(number,)) for example in examples for number in example.right]
    return list(examples)


def text_split(
    root: Path, name: str, row: TaskRow, split: str, tokenizer: TextTokenizer, cache: Path, labelled: bool = True
) -> TextSplit:
    """The tokens of a split: from the cache, or read, tokenized and put there; see `cache.tokenized_split`.

    Raises:
        UserError: the split is not there, or is not what the row says.
    """
    is_training = labelled and split.partition("/")[0] == "train"

    def read() -> list[Example]:
        examples = read_split(root, row, split, labelled, as_text=True)
        return taught(row, examples) if is_training else examples

    files = source_files(root, row, split)
    limits = tokenizer.max_source, tokenizer.max_target
    key = key_of(root, files, FORM, row, split, tokenizer.pieces.fingerprint, *limits, labelled)
    path = cache / f"{name}.{split.replace('/', '.')}.text.{key}.npz"
    arrays = arrays_of(path, ARRAYS, lambda: _made(name, row, split, tokenizer, read()))
    return TextSplit(
        TokenRuns(arrays["sources_T"], arrays["source_starts_E"]),
        TokenRuns(arrays["targets_T"], arrays["target_starts_E"]),
        arrays["labels_E"],
        arrays["keys_E"],
        int(arrays["num_truncated"]),
        Texts(read),
    )


ARRAYS = ("sources_T", "source_starts_E", "targets_T", "target_starts_E", "labels_E", "keys_E", "num_truncated")


def _made(
    name: str, row: TaskRow, split: str, tokenizer: TextTokenizer, examples: Sequence[Example]
) -> dict[str, NDArray[np.generic]]:
    pieces = tokenizer.pieces
    sources, cut_sources = pieces.runs([example.reads for example in examples], tokenizer.max_source)
    right = [next(iter(answer_texts_of(row, example)), "") for example in examples]
    targets, cut_targets = pieces.runs(right, tokenizer.max_target)
    for cut, what, most in (
        (cut_sources, "texts", tokenizer.max_source),
        (cut_targets, "answers", tokenizer.max_target),
    ):
        if cut:
            share = cut / len(examples)
            logger.warning(
                f"{name}, {split}: {cut} {what} ({share:.1%}) were longer than {most} tokens and lost their ends"
            )
    if form_of(row).referent:  # what a pronoun does not refer to is no answer, and has no loss
        sizes_E = targets.lengths_N * np.array([example.label == TRUE for example in examples])
        targets = TokenRuns(targets.chosen(np.arange(len(examples)), sizes_E), ends(sizes_E))
    return {
        "sources_T": sources.tokens_T,
        "source_starts_E": sources.starts_N,
        "targets_T": targets.tokens_T,
        "target_starts_E": targets.starts_N,
        "labels_E": np.array([np.nan if example.label is None else example.label for example in examples]),
        "keys_E": np.array([example.key for example in examples]),
        "num_truncated": np.array(cut_sources + cut_targets),
    }


class TextDataset(FairseqDataset):
    """The examples of a split.

    Attributes:
        sizes: (E, 2) how many tokens are read, and are to be written.
    """

    def __init__(self, split: TextSplit) -> None:
        super().__init__()
        self.sources, self.targets = split.sources, split.targets
        self.sizes: NDArray[np.int64] = np.stack([split.sources.lengths_N, split.targets.lengths_N], axis=1)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """`source` and `target`, the tokens of both, each with an end; a target of no tokens is no answer."""
        return {"id": index, "source": _run(self.sources, index), "target": _run(self.targets, index)}


def _run(runs: TokenRuns, index: int) -> Tensor:
    return torch.from_numpy(runs.tokens_T[runs.starts_N[index] : runs.starts_N[index + 1]]).long()


class TextCollate:
    """Makes a batch of examples (see `data.mixtures`)."""

    def __init__(self, padding: int, first: int) -> None:
        self.padding, self.first = padding, first

    def __call__(
        self, datasets: Sequence[FairseqDataset], items: Sequence[Item], pad_to_length: Mapping[str, int] | None = None
    ) -> Batch:
        """A batch of E examples: the items in their order.

        `net_input` has `src_tokens` (E, J), `src_lengths` (E,) and `prev_output_tokens` (E, L), what the decoder reads
        when it is to write `target` (E, L).
        """
        examples = [example for _, example in items]

        def padded(side: str) -> Tensor:
            least = (pad_to_length or {}).get(side, 1)  # where nobody knows an answer
            tokens: Tensor = collate_tokens([one[side] for one in examples], self.padding, pad_to_length=least)
            return tokens

        source, target = padded("source"), padded("target")
        first = target.new_full((len(target), 1), self.first)
        return {
            "id": torch.tensor([example["id"] for example in examples]),
            "nsentences": len(examples),
            "ntokens": int(target.ne(self.padding).sum()),
            "net_input": {
                "src_tokens": source,
                "src_lengths": source.ne(self.padding).sum(1),
                "prev_output_tokens": torch.cat([first, target[:, :-1]], dim=1),
            },
            "target": target,
        }
