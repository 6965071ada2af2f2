"""The pair of models that the benchmarks of training and generation compare, and batches for them.

Stock fairseq's dense `transformer` and our `base_moe_wmt15` of the same active size: sparse in every second block, its
experts at first copies of the stock model's feed-forward layers, all else the stock model's weights. The vocabulary is
the 32,000 pieces of `examples/translation/wmt15`. Sentences are random, their lengths and their words' frequencies like
those of text; fairseq's own data set and `batch_by_size` make the batches.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from fairseq import options
from fairseq.data import Dictionary, LanguagePairDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks.translation import TranslationTask

from fairseq_mtmoe import register

register()


@dataclass(frozen=True)
class Size:
    """Of both models; `layers` and `heads` are those of either stack."""

    width: int = 512
    inner: int = 2048
    layers: int = 6
    heads: int = 8
    num_experts: int = 16
    symbols: int = 32_000

    def options(self) -> list[str]:
        """What both models say on the command line; the rest of `base_moe_wmt15` is fairseq's default."""
        chosen = ["--share-all-embeddings"]
        for side in ("encoder", "decoder"):
            chosen += [f"--{side}-normalize-before", f"--{side}-embed-dim", str(self.width)]
            chosen += [f"--{side}-ffn-embed-dim", str(self.inner), f"--{side}-layers", str(self.layers)]
            chosen += [f"--{side}-attention-heads", str(self.heads)]
        return chosen


FULL = Size()
SMALL = Size(width=256, inner=1024, layers=4, heads=4, num_experts=8, symbols=8_000)


GIVEN = ("in-memory", "--task", "translation", "--source-lang", "en", "--target-lang", "xx", "--num-workers", "0")


def stock_config(size: Size, *arguments: str) -> Any:
    """What `fairseq-train --arch transformer …` runs on; `arguments` are options of fairseq-train."""
    return training_config(*GIVEN, "--arch", "transformer", *size.options(), *arguments)


def sparse_config(size: Size, *arguments: str) -> Any:
    experts = ("--arch", "base_moe_wmt15", "--num-experts", str(size.num_experts))
    return training_config(*GIVEN, *experts, *size.options(), *arguments)


def training_config(*arguments: str) -> Any:
    parser = options.get_training_parser()
    config = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, list(arguments)))
    for group in config.values():  # fairseq takes a machine with `--bf16` for a TPU
        if isinstance(group, MutableMapping) and "tpu" in group:
            group["tpu"] = False
    return config


def translation_task(size: Size) -> TranslationTask:
    """fairseq's own task with one dictionary of `size.symbols` words, and no data behind it."""
    dictionary = Dictionary()
    for index in range(size.symbols - len(dictionary)):
        dictionary.add_symbol(f"w{index}")
    return TranslationTask(stock_config(size).task, dictionary, dictionary)


def models(size: Size, task: TranslationTask) -> dict[str, torch.nn.Module]:
    """`stock` and `sparse`, equal in what they compute until they are trained."""
    torch.manual_seed(1)
    stock = task.build_model(stock_config(size).model)
    sparse = task.build_model(sparse_config(size, "--dense-updates", "1").model)
    sparse.load_state_dict(stock.state_dict())
    sparse.sparsify()
    sparse.dense_updates = 0
    return {"stock": stock, "sparse": sparse}


class RandomTexts:
    """What fairseq's data sets ask of a column of texts. The text at an index is always the same."""

    def __init__(self, sizes: np.ndarray, dictionary: Dictionary, seed: int) -> None:
        self.sizes = sizes
        self.first, self.end = dictionary.nspecial, dictionary.eos()
        self.seed = seed
        # Frequencies of words fall with their rank (Zipf).
        frequency = 1 / np.arange(10, len(dictionary) - self.first + 10)
        self.cumulated = np.cumsum(frequency / frequency.sum())

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> torch.Tensor:
        draws = np.random.default_rng([self.seed, index]).random(int(self.sizes[index]) - 1)
        ranks = np.minimum(np.searchsorted(self.cumulated, draws), len(self.cumulated) - 1)
        return torch.from_numpy(np.append(ranks + self.first, self.end))


def sentences(task: TranslationTask, count: int = 1_000_000) -> LanguagePairDataset:
    """Random sentence pairs of 5 to 60 words, most of them short; by default as many as wmt15's virtual epoch has.

    The number matters to the padding: among many sentences, each batch finds enough of nearly the same two lengths.
    """
    random = np.random.default_rng(1)
    source = np.clip(5 + random.exponential(18, count), 5, 60).astype(np.int64)
    target = np.clip(source * random.lognormal(0.05, 0.2, count), 5, 60).astype(np.int64)
    return LanguagePairDataset(
        RandomTexts(source, task.source_dictionary, 1), source, task.source_dictionary,
        RandomTexts(target, task.target_dictionary, 2), target, task.target_dictionary, shuffle=False,
    )  # fmt: skip


def batches(data: LanguagePairDataset, max_tokens: int) -> Iterator[dict[str, Any]]:
    """Batches of sentences of like lengths, padded, in a random order, as `--max-tokens` makes them."""
    groups = data.batch_by_size(data.ordered_indices(), max_tokens=max_tokens, required_batch_size_multiple=8)
    for index in np.random.default_rng(1).permutation(len(groups)):
        yield data.collater([data[int(item)] for item in groups[index]])
