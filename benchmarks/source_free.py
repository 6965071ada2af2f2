"""What a translator's perplexity is worth: beside a trigram model that never sees the source, and with wrong sources.

    python benchmarks/source_free.py DATA                            # perplexity of each pair by trigrams alone
    python benchmarks/source_free.py DATA --path RUN/averaged.pt     # the model's, too, and with shuffled sources

A model whose perplexity is not far below the trigrams', or hardly rises where every sentence gets another one's source,
has not begun to translate, and differences between such models say nothing about translation.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import click
import torch

ORDER = 3
_BEGIN = -1  # stands before a sentence; no piece has this number


class KneserNey:
    """Interpolated Kneser-Ney with one discount for each order (Chen and Goodman, 1998, equation 27 for D).

    Args:
        sentences: pieces' numbers, the end of the sentence last.
        size: of the vocabulary; below the unigrams every piece is alike.
    """

    def __init__(self, sentences: Iterable[Sequence[int]], size: int) -> None:
        self._size = size
        counts = [Counter((*before, piece) for sentence in sentences for piece, before in _places(sentence))]
        # Below the highest order an n-gram counts as often as there are different pieces before it.
        for _ in range(ORDER - 1):
            counts.insert(0, Counter(ngram[1:] for ngram in counts[0]))
        self._counts = counts
        self._discounts = [_discount(one) for one in counts]
        self._totals: list[Counter[tuple[int, ...]]] = [Counter() for _ in counts]
        self._followers: list[Counter[tuple[int, ...]]] = [Counter() for _ in counts]
        for one, totals, followers in zip(counts, self._totals, self._followers, strict=True):
            for ngram, count in one.items():
                totals[ngram[:-1]] += count
                followers[ngram[:-1]] += 1

    def probability(self, piece: int, context: Sequence[int]) -> float:
        """Of a piece after the `ORDER - 1` ones before it."""
        found = 1 / self._size
        for length, discount in enumerate(self._discounts):
            before = tuple(context[len(context) - length :])
            total = self._totals[length][before]
            if not total:
                break
            kept = max(self._counts[length][(*before, piece)] - discount, 0) / total
            found = kept + discount * self._followers[length][before] / total * found
        return found

    def nll(self, sentence: Sequence[int]) -> float:
        """The negative log likelihood of a sentence with its end, in nats."""
        return -sum(math.log(self.probability(piece, before)) for piece, before in _places(sentence))


def _places(sentence: Sequence[int]) -> Iterable[tuple[int, tuple[int, ...]]]:
    """Each piece with the `ORDER - 1` before it."""
    padded = (*[_BEGIN] * (ORDER - 1), *sentence)
    return ((padded[at], padded[at - ORDER + 1 : at]) for at in range(ORDER - 1, len(padded)))


def _discount(counts: Counter[tuple[int, ...]]) -> float:
    ones, twos = (sum(count == number for count in counts.values()) for number in (1, 2))
    return ones / (ones + 2 * twos) if ones else 0.5


def total_perplexity(sums: dict[str, tuple[float, int]]) -> float:
    """Over the tokens of all pairs, of each pair's sum in nats and number of tokens."""
    return math.exp(sum(nll for nll, _ in sums.values()) / sum(tokens for _, tokens in sums.values()))


def by_trigrams(data: Path) -> dict[str, tuple[float, int]]:
    """Of each pair, the sum of trigrams' negative log likelihoods (nats) in validation and the number of tokens, the
    end of each sentence among them. The model of a pair is counted on its target text in training."""
    from fairseq.data import Dictionary, data_utils

    found = {}
    for index in sorted(data.glob("train.*-*.*.idx")):
        _, pair, language, _ = index.name.split(".")
        if language != pair.split("-")[1]:
            continue
        size = len(Dictionary.load(str(data / f"dict.{language}.txt")))
        train, valid = (
            [line.tolist() for line in data_utils.load_indexed_dataset(str(data / f"{split}.{pair}.{language}"))]
            for split in ("train", "valid")
        )
        model = KneserNey(train, size)
        found[pair] = (sum(map(model.nll, valid)), sum(map(len, valid)))
    return found


@torch.no_grad()
def by_model(path: Path, data: Path, shuffled: bool) -> dict[str, tuple[float, int]]:
    """The same of a checkpoint; shuffled: each sentence of a batch (of one pair) gets the source of the next one."""
    from fairseq import checkpoint_utils

    from fairseq_mtmoe import register

    register()
    # the data may lie elsewhere than in training
    (model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task([str(path)], arg_overrides={"data": str(data)})
    criterion = task.build_criterion(cfg.criterion)
    task.load_dataset("valid")
    batches = task.get_batch_iterator(task.dataset("valid"), max_tokens=3000).next_epoch_itr(shuffle=False)
    sums: dict[str, tuple[float, int]] = {}
    for batch in batches:
        for name in ("src_tokens", "src_lengths") if shuffled else ():
            batch["net_input"][name] = batch["net_input"][name].roll(1, dims=0)
        _, _, log = task.valid_step(batch, model, criterion)
        nll, tokens = sums.get(batch["task"], (0.0, 0))
        sums[batch["task"]] = (nll + float(log["nll_loss"]), tokens + int(log["ntokens"]))
    return sums


@click.command()
@click.argument("data", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--path", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="A checkpoint.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Where to write the figures as JSON.")
def main(data: Path, path: Path | None, out: Path | None) -> None:
    """Validation perplexity of the data directory DATA by trigrams of the target text alone, and by a model."""
    sums = {"trigrams": by_trigrams(data)}
    if path:
        sums |= {"model": by_model(path, data, shuffled=False), "shuffled": by_model(path, data, shuffled=True)}
    found = {
        name: {"all": total_perplexity(one), **{pair: math.exp(nll / n) for pair, (nll, n) in one.items()}}
        for name, one in sums.items()
    }
    for name, perplexity in found.items():
        click.echo(f"{name}: " + ", ".join(f"{pair} {value:.2f}" for pair, value in perplexity.items()))
    if out:
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
