"""Tokens, datasets and batches of tasks as text to text, by their `text_form`."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, Self

import numpy as np
import sentencepiece
import torch
from fairseq.data import FairseqDataset
from fairseq.data.data_utils import collate_tokens
from numpy.typing import NDArray

from fairseq_mtmoe.core.digest import digest_of
from fairseq_mtmoe.core.errors import UserError, first_line
from fairseq_mtmoe.multitask.mixtures.dataset import Batch, Item
from fairseq_mtmoe.nlu.data.cache import stored_arrays
from fairseq_mtmoe.nlu.data.reading import Example, TaskSet, keys_of, labels_of, read_split
from fairseq_mtmoe.nlu.data.table import Kind, TaskRow, TextForm
from fairseq_mtmoe.nlu.data.token_runs import TokenRuns, lengths_of, whole_characters

logger = logging.getLogger(__name__)

FORM = 2  # version of the files in the cache
ARRAYS = (
    "sources_T",
    "source_starts_E",
    "targets_T",
    "target_starts_E",
    "labels_E",
    "keys_E",
    "num_truncated",
)
TRUE = 1  # the label of a referent
PADDING = "<pad>"  # T5's piece 0
END = "</s>"  # T5's piece 1
UNKNOWN = "<unk>"  # T5's piece 2


class Pieces:
    """SentencePiece model whose first pieces are T5's (UserError: it has others)."""

    padding, end, unknown = range(3)

    def __init__(self, model: bytes) -> None:
        try:
            self._model = sentencepiece.SentencePieceProcessor(model_proto=model)
            list(self)  # raises for a damaged piece
        except Exception as error:  # the library raises nothing more precise
            raise UserError(
                f"`spiece.model` cannot be read as a SentencePiece model: {first_line(error)}."
            ) from error
        special_ids = (self._model.pad_id(), self._model.eos_id(), self._model.unk_id())
        if special_ids != (self.padding, self.end, self.unknown):
            raise UserError(
                f"`spiece.model` must have {PADDING}, {END} and {UNKNOWN} as pieces 0, 1 and 2, "
                f"like T5, but has them as {', '.join(map(str, special_ids))}."
            )
        self.fingerprint = digest_of(model)

    def __len__(self) -> int:
        return int(self._model.get_piece_size())

    def __iter__(self) -> Iterator[str]:
        return map(str, map(self._model.id_to_piece, range(len(self))))

    def token_ids(self, text: str) -> list[int]:
        """Return the ids of a text's pieces, without an end."""
        ids: list[int] = self._model.encode(text, out_type=int)
        return ids

    def runs(self, texts: Sequence[str], most: int) -> tuple[TokenRuns, int]:
        """Return up to `most` ids of each text with its end; count truncated texts."""
        ids_by_text = self._model.encode(list(map(whole_characters, texts)), out_type=int)
        too_long = int((lengths_of(ids_by_text) >= most).sum())
        return TokenRuns.of([[*ids[: most - 1], self.end] for ids in ids_by_text]), too_long

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of ids up to the end.

        Ids without a piece, such as T5's sentinels, become unknown.
        """
        ids = []
        for token in takewhile(lambda token: token != self.end, token_ids):
            ids.append(token if token < len(self) else self.unknown)
        return str(self._model.decode(ids)).strip()

    def as_written(self, text: str) -> str:
        """Return a text as a model would write it: encoded and decoded again."""
        return self.text(self.token_ids(text))


@dataclass(frozen=True)
class TextTokenizer:
    """Tokenization of texts to `max_source` and `max_target` tokens with an end."""

    pieces: Pieces
    max_source: int
    max_target: int


@dataclass(frozen=True)
class TextSplit:
    """The E examples of a split."""

    sources: TokenRuns  # E runs
    targets: TokenRuns  # E runs; without a label only an end
    labels_E: NDArray[np.float64]  # as in `Example`; NaN without a label
    keys_E: NDArray[np.str_]
    read: Callable[[], Sequence[Example]]

    @cached_property
    def examples(self) -> Sequence[Example]:
        """Return the examples, read at the first use, as training does not need them."""
        return self.read()

    def __len__(self) -> int:
        return len(self.labels_E)

    num_rows = property(__len__)  # number of examples in a dataset

    def chosen(self, indices: NDArray[np.int64]) -> Self:
        """Return a split of the examples at these indices."""
        return replace(
            self,
            sources=self.sources.chosen(indices),
            targets=self.targets.chosen(indices),
            labels_E=self.labels_E[indices],
            keys_E=self.keys_E[indices],
            read=lambda: [self.examples[index] for index in indices.tolist()],
        )


def form_of(row: TaskRow) -> TextForm:
    """Return a task's text form, which must exist."""
    assert row.text_form is not None
    return row.text_form


def label_texts(row: TaskRow) -> list[str]:
    """Return the text of each label of a task; empty if answers are no labels."""
    form = form_of(row)
    return [] if form.referent or not row.labels else list(form.writes or row.labels)


def answer_texts_of(row: TaskRow, example: Example) -> list[str]:
    """Return an example's right answers as texts; empty if they are unknown."""
    form = form_of(row)
    if form.referent:
        return [example.referent]
    if row.kind is Kind.span:
        return list(example.answers)
    if row.is_open:
        return [example.names[number] for number in example.right]
    if example.label is None:
        return []
    if row.kind is Kind.regression:
        return [stepped(example.label, form.step)]
    return [label_texts(row)[int(example.label)]]


def stepped(value: float, step: float) -> str:
    """Return a value rounded to a multiple of `step`, as text, such as 3.2.

    Ties are rounded as by T5's authors.
    """
    digits = max(-int(Decimal(f"{step:g}").as_tuple().exponent), 1)
    per_one = 1 / step
    return f"{round(value * per_one) / per_one:.{digits}f}"


def taught(row: TaskRow, examples: Sequence[Example]) -> list[Example]:
    """Return the examples to train on, as in T5.

    A ranking has one for each right candidate. A task of referents has only the true ones.
    """
    if form_of(row).referent:
        return [example for example in examples if example.label == TRUE]
    if not row.is_open:
        return list(examples)
    right_examples = []
    for example in examples:
        for number in example.right:
            right_examples.append(replace(example, right=(number,)))
    return right_examples


def text_split(
    task_set: TaskSet,
    tokenizer: TextTokenizer,
    cache: Path,
    labelled: bool = True,
    evaluates: bool = False,
) -> TextSplit:
    """Return a set's tokens from the cache, or tokenize the set and store them.

    evaluates: whether the split is scored. A training split then has all examples, not only those
        that are `taught`.
    """

    row = task_set.row

    def read() -> list[Example]:
        examples = read_split(task_set, labelled, as_text=True)
        return taught(row, examples) if is_taught else examples

    def make() -> dict[str, NDArray[np.generic]]:
        examples = read()
        right = []
        texts = []
        for example in examples:
            right.append([*answer_texts_of(row, example), ""][0])
            texts.append(example.reads)
        sources, cut_sources = tokenizer.pieces.runs(texts, tokenizer.max_source)
        targets, cut_targets = tokenizer.pieces.runs(right, tokenizer.max_target)
        # Nouns that the pronoun does not refer to have no target and no loss.
        if form_of(row).referent:
            sizes_E = targets.lengths_N * (labels_of(examples) == TRUE)
            targets = targets.chosen(np.arange(len(examples)), sizes_E)
        return {
            "sources_T": sources.tokens_T,
            "source_starts_E": sources.starts_N,
            "targets_T": targets.tokens_T,
            "target_starts_E": targets.starts_N,
            "labels_E": labels_of(examples),
            "keys_E": keys_of(examples),
            "num_truncated": np.array(cut_sources + cut_targets),
        }

    is_training_set = labelled and task_set.is_for_training
    is_taught = is_training_set and not evaluates
    lengths = (tokenizer.max_source, tokenizer.max_target)
    parts = [FORM, tokenizer.pieces.fingerprint, *lengths, labelled]
    if is_training_set and evaluates:
        parts.append("evaluates")
    arrays = stored_arrays(cache, task_set, parts, ARRAYS, make, kind="text.")
    sources, source_starts, targets, target_starts, labels_E, keys_E, num_truncated = map(
        arrays.__getitem__, ARRAYS
    )
    if num_truncated:  # also if the tokens come from the cache
        most = f"{tokenizer.max_source} and {tokenizer.max_target} tokens"
        cut = f"{num_truncated} texts and answers of {len(labels_E)} examples"
        logger.warning(f"{task_set.name}, {task_set.split}: truncated to {most}: {cut}")
    return TextSplit(
        TokenRuns(sources, source_starts), TokenRuns(targets, target_starts), labels_E, keys_E, read
    )


class TextDataset(FairseqDataset):
    """Dataset of a split's examples; `sizes` (E, 2): lengths of sources and targets."""

    def __init__(self, split: TextSplit) -> None:
        super().__init__()
        self.sources = split.sources
        self.targets = split.targets
        self.sizes: NDArray[np.int64] = np.stack(
            [split.sources.lengths_N, split.targets.lengths_N], axis=1
        )

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> dict[str, Any]:
        source = torch.from_numpy(self.sources[index]).long()
        target = torch.from_numpy(self.targets[index]).long()
        return {"id": index, "source": source, "target": target}


class TextCollate:
    """`Collate` for text-to-text examples; `first` is the decoder's start token."""

    def __init__(self, padding: int, first: int) -> None:
        self.padding = padding
        self.first = first

    def __call__(self, datasets: Sequence[FairseqDataset], items: Sequence[Item]) -> Batch:
        """Return a batch of E examples.

        It has `src_tokens` (E, J), `src_lengths` (E,), `prev_output_tokens` and `target` (E, L).
        """
        ids = []
        sources = []
        targets = []
        for _, example in items:
            ids.append(example["id"])
            sources.append(example["source"])
            targets.append(example["target"])
        source = collate_tokens(sources, self.padding, pad_to_length=1)
        target = collate_tokens(targets, self.padding, pad_to_length=1)  # all may be empty
        first = target.new_full((len(target), 1), self.first)
        return {
            "id": torch.tensor(ids),
            "nsentences": len(ids),
            "ntokens": int(target.ne(self.padding).sum()),
            "net_input": {
                "src_tokens": source,
                "src_lengths": source.ne(self.padding).sum(1),
                "prev_output_tokens": torch.cat([first, target[:, :-1]], dim=1),
            },
            "target": target,
        }
