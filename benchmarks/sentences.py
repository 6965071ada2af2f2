"""Counts of n-grams of each test sentence, kept for every run, and BLEU of their sums: for intervals over sentences.

`study.py record` puts them into `results/sentences/STUDY/ROW-SEED.npz`, an array for each test set and pair. It has
about 25 KB for 1,000 sentences of three pairs. The texts, `PAIR.hyp` and `PAIR.ref`, stay with the run in its folders
`scores*`, about 0.4 MB a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics import BLEU

ORDER = 4
Counts = NDArray[np.int16]  # sentences × (hypothesis's words, reference's words, common n-grams of 1 to 4 words)


def counts_of(hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
    """Return the counts of each sentence, as sacrebleu has them."""
    rows = BLEU()._extract_corpus_statistics(hypotheses, [references])
    return np.array(rows, dtype=np.int16)[:, : 2 + ORDER]


def statistics(counts: Counts) -> NDArray[np.float64]:
    """Return what is summed over sentences: the counts, and how many n-grams a hypothesis has."""
    words = counts[:, :1].astype(float)
    lengths = np.maximum(words - np.arange(ORDER), 0)
    return np.concatenate([counts, lengths], axis=1)


def bleu(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return BLEU of sums of `statistics` along the last axis, smoothed as sacrebleu does by default."""
    words, reference = sums[..., 0], sums[..., 1]
    common, possible = sums[..., 2 : 2 + ORDER], sums[..., 2 + ORDER :]
    halvings = np.cumsum(common == 0, axis=-1)
    smoothed = np.where(common == 0, 0.5**halvings, common)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.log(smoothed / possible).mean(axis=-1)
        brevity = np.minimum(1 - reference / words, 0)
        is_any = (common[..., 0] > 0) & (possible[..., -1] > 0)
        return np.where(is_any, 100 * np.exp(precision + brevity), 0.0)


def keep(scores: dict[str, Path], path: Path) -> None:
    """Write the counts of a run.

    Args:
        scores: the folders of `mtmoe evaluate`, by the name of the test set, which is empty for the study's own.
        path: the file.
    """
    arrays: dict[str, Counts] = {}
    for name, folder in scores.items():
        for file in sorted(folder.glob("*.hyp")):
            texts = [one.read_text(encoding="utf-8").removesuffix("\n").split("\n")
                     for one in (file, file.with_suffix(".ref"))]  # fmt: skip
            arrays["/".join(filter(None, (name, file.stem)))] = counts_of(*texts)
    if arrays:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **arrays)


def sets_of(path: Path) -> dict[str, list[str]]:
    """Return the pairs of each test set of a run, by its name, which is empty for the study's own."""
    pairs: dict[str, list[str]] = {}
    with np.load(path) as arrays:
        for pair in arrays:
            pairs.setdefault(pair.rpartition("/")[0], []).append(pair)
    return pairs


def read(path: Path, pairs: Sequence[str]) -> NDArray[np.float64]:
    """Return the statistics of a run's pairs, whose test sets are parallel: pair × sentence × statistic."""
    with np.load(path) as arrays:
        return np.stack([statistics(arrays[pair]) for pair in pairs])
