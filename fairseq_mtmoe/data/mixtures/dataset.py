"""Datasets of several language pairs under one index, and batches that know their sentences' pairs.

fairseq collates a mixed batch with the first pair's dataset, which gives every sentence that pair's language ids. Here
each sentence keeps its own: `task_ids` (B,) always, and `src_lang_id`, `tgt_lang_id` (B, 1) where fairseq has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from fairseq.data import FairseqDataset, LanguagePairDataset, data_utils
from torch import Tensor

from fairseq_mtmoe.data.sampling import Numbering

Item = tuple[int, dict[str, Any]]


@dataclass(frozen=True)
class PairIds:
    """What a batch says about one pair's sentences: the task's id and, with `--enable-lang-ids`, the languages'."""

    task: int
    source_lang: int | None = None
    target_lang: int | None = None


class PairsDataset(FairseqDataset):
    """Sentences of several language pairs.

    Args:
        tasks: the task id of each pair.
        one_collater: whether all pairs are collated alike; otherwise each pair's dataset collates its own sentences.
    """

    def __init__(self, tasks: Sequence[int], one_collater: bool = True) -> None:
        super().__init__()
        self.tasks = list(tasks)
        self.one_collater = one_collater
        self.datasets: list[FairseqDataset] = []

    def choose(self, datasets: list[FairseqDataset], numbering: Numbering) -> None:
        """Become these datasets, whose sentences have the indices of `numbering`."""
        self.datasets = datasets
        self.ids = [pair_ids(dataset, task) for dataset, task in zip(datasets, self.tasks, strict=True)]
        self.numbering = numbering

    def __len__(self) -> int:
        return len(self.numbering)

    def __getitem__(self, index: int) -> Item:
        pair, sentence = self.numbering.locate(int(index))
        return pair, self.datasets[pair][sentence]

    def sizes_of(self, indices: np.ndarray) -> np.ndarray:
        """(V, 2) source and target lengths of sentences."""
        pairs, sentences = self.numbering.locate_all(indices)
        sizes = np.empty((len(indices), 2), dtype=np.int64)
        for pair, dataset in enumerate(self.datasets):
            chosen = pairs == pair
            sizes[chosen] = dataset.sizes[sentences[chosen]]
        return sizes

    def num_tokens(self, index: int) -> int:
        """The longer of source and target."""
        return max(self.size(index))

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        """The same of many sentences."""
        return self.sizes_of(indices).max(axis=1)

    def size(self, index: int) -> tuple[int, int]:
        """Source and target length."""
        pair, sentence = self.numbering.locate(int(index))
        source, target = self.datasets[pair].sizes[sentence]
        return int(source), int(target)

    def filter_indices_by_size(self, indices: np.ndarray, max_sizes: Any) -> tuple[np.ndarray, list[int]]:
        """The indices of sentences that are not too long, and the others."""
        places = np.arange(len(indices))
        source, target = self.sizes_of(indices).T
        kept, ignored = data_utils.filter_paired_dataset_indices_by_size(source, target, places, max_sizes)
        return indices[kept], indices[ignored].tolist()

    def batch_by_size(self, indices: np.ndarray, *args: Any, **kwargs: Any) -> list[np.ndarray]:
        """fairseq's batches of these indices, and the last one, which fairseq drops where it holds fewer sentences than
        `--required-batch-size-multiple`: those would never be seen, not even in a test."""
        batches = super().batch_by_size(indices, *args, **kwargs) if len(indices) else []
        rest = indices[sum(len(batch) for batch in batches) :]
        return [*batches, rest] if len(rest) else list(batches)

    def collater(self, items: Sequence[Item], pad_to_length: dict[str, int] | None = None) -> dict[str, Any]:
        """A batch of fairseq's form, longest source first, with the ids of each sentence."""
        if not items:
            return {}
        # Collating reorders the sentences; the place in `items` as their id tells how.
        placed = [(pair, {**sample, "id": place}) for place, (pair, sample) in enumerate(items)]
        if self.one_collater:
            batch = self.datasets[items[0][0]].collater([sample for _, sample in placed], pad_to_length=pad_to_length)
        else:
            batch = self._collate_apart(placed, pad_to_length)
        order = batch["id"].tolist()
        batch["id"] = torch.tensor([items[place][1]["id"] for place in order])
        self._add_ids(batch, [self.ids[items[place][0]] for place in order])
        return batch

    def _add_ids(self, batch: dict[str, Any], ids_B: list[PairIds]) -> None:
        batch["task_ids"] = torch.tensor([ids.task for ids in ids_B])
        if ids_B[0].source_lang is not None:
            batch["net_input"]["src_lang_id"] = torch.tensor([[ids.source_lang] for ids in ids_B])
            batch["tgt_lang_id"] = torch.tensor([[ids.target_lang] for ids in ids_B])

    def _collate_apart(self, items: list[Item], pad_to_length: dict[str, int] | None) -> dict[str, Any]:
        pad_to = {
            side: max([len(sample[side]) for _, sample in items] + [(pad_to_length or {}).get(side, 0)])
            for side in ("source", "target")
        }
        by_pair: dict[int, list[dict[str, Any]]] = {}
        for pair, sample in items:
            by_pair.setdefault(pair, []).append(sample)
        return merge_batches(
            [self.datasets[pair].collater(samples, pad_to_length=pad_to) for pair, samples in by_pair.items()]
        )


def merge_batches(batches: list[dict[str, Any]]) -> dict[str, Any]:
    """One batch of several that are padded to the same lengths, longest source first."""
    lengths = torch.cat([batch["net_input"]["src_lengths"] for batch in batches])
    order = lengths.sort(descending=True, stable=True)[1]

    def merged(tensors: list[Tensor]) -> Tensor:
        return torch.cat(tensors).index_select(0, order)

    return {
        "id": merged([batch["id"] for batch in batches]),
        "nsentences": sum(batch["nsentences"] for batch in batches),
        "ntokens": sum(batch["ntokens"] for batch in batches),
        "net_input": {
            name: merged([batch["net_input"][name] for batch in batches])
            for name in ("src_tokens", "src_lengths", "prev_output_tokens")
        },
        "target": merged([batch["target"] for batch in batches]),
    }


def pair_ids(dataset: FairseqDataset, task: int) -> PairIds:
    """The ids of a pair's sentences; fairseq's dataset knows the languages' if `--enable-lang-ids` asks for them."""
    plain = dataset
    while not isinstance(plain, LanguagePairDataset):
        plain = plain.dataset
    return PairIds(task, plain.src_lang_id, plain.tgt_lang_id)
