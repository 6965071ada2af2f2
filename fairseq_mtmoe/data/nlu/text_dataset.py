"""Examples of texts as fairseq's datasets, and batches of fairseq's form of translation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from fairseq.data import FairseqDataset
from fairseq.data.data_utils import collate_tokens
from numpy.typing import NDArray
from torch import Tensor

from fairseq_mtmoe.data.mixtures.dataset import Batch, Item
from fairseq_mtmoe.data.nlu.text_split import TextSplit
from fairseq_mtmoe.data.nlu.token_runs import TokenRuns


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
    """Makes a batch of examples (see `data.mixtures`).

    Args:
        padding: the token that fills texts up.
        first: the token that the decoder reads first.
    """

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
