"""Collate examples of several language pairs into a batch.

The longest source comes first. A batch has language ids if its datasets have them.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from fairseq.data import FairseqDataset, LanguagePairDataset
from torch import Tensor

from fairseq_mtmoe.multitask.mixtures.dataset import Batch, Item

KEPT = ("id", "nsentences", "ntokens", "net_input", "target")


class PairCollate:
    """`Collate` for language pairs.

    one_collater: whether the collater of any dataset can collate all examples.
    """

    def __init__(self, one_collater: bool = True) -> None:
        self.one_collater = one_collater

    def __call__(self, datasets: Sequence[FairseqDataset], items: Sequence[Item]) -> Batch:
        """Return the batch of examples of language pairs."""
        if self.one_collater:
            batch: Batch = datasets[items[0][0]].collater([sample for _, sample in items])
        else:
            batch = _collate_apart(datasets, items)
        pair_of = {sample["id"]: pair for pair, sample in items}
        _add_language_ids(batch, datasets, [pair_of[number] for number in batch["id"].tolist()])
        return batch


def _collate_apart(datasets: Sequence[FairseqDataset], items: Sequence[Item]) -> Batch:
    """Merge the pairs' own batches, padded to the same lengths, longest source first."""
    lengths = {"source": 0, "target": 0}
    by_pair = defaultdict(list)
    for pair, sample in items:
        by_pair[pair].append(sample)
        for side, longest in lengths.items():
            lengths[side] = max(longest, len(sample[side]))
    batches = []
    for pair, samples in by_pair.items():
        batch = datasets[pair].collater(samples, pad_to_length=lengths)
        batches.append({name: batch[name] for name in KEPT})
    source_lengths = torch.cat([batch["net_input"]["src_lengths"] for batch in batches])
    return merged(batches, source_lengths.sort(descending=True, stable=True)[1])


def merged(batches: Sequence[Mapping[str, Any]], order: Tensor) -> Batch:
    """Merge batches' tensors in the given order of rows, and add their counts.

    A tensor has a row per sentence.
    """
    batch: Batch = {}
    for name, value in batches[0].items():
        values = [part[name] for part in batches]
        if isinstance(value, Mapping):
            batch[name] = merged(values, order)
        elif isinstance(value, Tensor):
            batch[name] = torch.cat(values)[order]
        elif value is not None:
            batch[name] = sum(values)
    return batch


def _add_language_ids(
    batch: Batch, datasets: Sequence[FairseqDataset], pairs_B: Sequence[int]
) -> None:
    ids = {pair: language_ids(datasets[pair]) for pair in set(pairs_B)}
    ids_B2 = [ids[pair] for pair in pairs_B]
    if ids_B2[0][0] is not None:
        sources_B1, targets_B1 = torch.tensor(ids_B2).split(1, dim=1)
        batch["net_input"]["src_lang_id"] = sources_B1
        batch["tgt_lang_id"] = targets_B1


def language_ids(dataset: FairseqDataset) -> tuple[int | None, int | None]:
    """Return the ids of a pair's source and target language.

    They are None without `--enable-lang-ids`.
    """
    plain = dataset
    while not isinstance(plain, LanguagePairDataset):
        plain = plain.dataset
    return plain.src_lang_id, plain.tgt_lang_id
