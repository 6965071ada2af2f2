"""Training on a share of a task's examples, as few-shot studies do (MT-TaG, §5.2): the same ones in every run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.nlu.token_runs import ends
from fairseq_mtmoe.data.nlu.tokenizing import TokenizedSplit
from fairseq_mtmoe.data.sampling import stratified_share
from fairseq_mtmoe.errors import raise_invalid

OF_WINDOWS = ("passages_S2", "offsets_S", "answers_S2")  # the fields that a span task's split has for each sequence
GROUPS = 10  # into which a regression's values are divided

_FORM = "shares above 0 and at most 1: one for all tasks, tasks' own, or both, such as 0.1,qqp=0.01"


def shares_of(text: str | None, tasks: Collection[str]) -> dict[str, float]:
    """Each task's share of its training examples by `--train-share`: `0.1`, `qqp=0.05,mnli=0.01` or both.

    Args:
        text: the option.
        tasks: all that the tables know, so that runs of some of them can have the same option.

    Raises:
        UserError: it names another task, or one twice, or a share is out of its range.
    """
    found: dict[str, float] = {}
    for part in text.split(",") if text else ():
        name, equals, share = part.rpartition("=")
        if equals and name not in tasks:
            raise_invalid("--train-share", f"of tasks among {', '.join(tasks)}", text)
        if name in found or not _is_share(share):
            raise_invalid("--train-share", _FORM, text)
        found[name] = float(share)
    common = found.pop("", 1.0)
    return {name: found.get(name, common) for name in tasks}


def few_of(split: TokenizedSplit, share: float, seed: int, is_regression: bool) -> TokenizedSplit:
    """A share of a split's examples, in their order: of each label alike, or of low and high values; questions as such.

    Args:
        split: with labels.
        share: above 0 and at most 1.
        seed: names the draw, in which a smaller share's examples are among a larger one's.
        is_regression: whether labels are numbers, and not classes.
    """
    return _chosen(split, stratified_share(_strata(split.labels_E, is_regression, GROUPS), share, seed))


def drawn_examples(labels_E: NDArray[np.float64], count: int, seed: int, is_regression: bool) -> NDArray[np.int64]:
    """The numbers of `count` examples, drawn as `few_of` draws a share.

    Raises:
        UserError: they are fewer than there are labels.
    """
    strata_E = _strata(labels_E, is_regression, min(GROUPS, count))
    num_strata = len(np.unique(strata_E))
    if count < num_strata:
        raise_invalid("--train-examples", f"at least {num_strata}, an example of each label", count)
    return stratified_share(strata_E, count / len(labels_E), seed)


def _strata(labels_E: NDArray[np.float64], is_regression: bool, groups: int) -> NDArray[np.integer]:
    """The label of each example, or which of so many groups of equal sizes a regression's value is in."""
    values_E = np.nan_to_num(labels_E)  # questions about passages have no labels
    if not is_regression:
        return values_E.astype(np.int64)
    bounds = np.quantile(values_E, np.arange(1, groups) / groups)
    strata_E: NDArray[np.integer] = np.searchsorted(bounds, values_E)
    return strata_E


def _chosen(split: TokenizedSplit, examples: NDArray[np.int64]) -> TokenizedSplit:
    """The split of these examples alone, with arrays of its own, so that the others' tokens can go."""
    candidates_E, lengths_S = np.diff(split.row_offsets_E), np.diff(split.starts_S)
    kept_E = np.zeros(len(split), dtype=bool)
    kept_E[examples] = True
    kept_S = np.repeat(kept_E, candidates_E)
    counts_E = np.diff(split.word_starts_E)
    kept_W = np.repeat(kept_E, counts_E) if len(counts_E) else np.empty(0, dtype=bool)
    named = kept_W if len(counts_E) else kept_S
    return replace(
        split,
        tokens_T=split.tokens_T[np.repeat(kept_S, lengths_S)],
        starts_S=ends(lengths_S[kept_S]),
        **{name: getattr(split, name)[kept_S] for name in OF_WINDOWS if split.has_windows},
        segment_start_S=split.segment_start_S[kept_S],
        row_offsets_E=ends(candidates_E[kept_E]),
        labels_E=split.labels_E[kept_E],
        is_correct_S=split.is_correct_S[kept_S] if len(split.is_correct_S) else split.is_correct_S,
        names=split.names.chosen(np.flatnonzero(named)) if len(split.names) else split.names,
        words_W=split.words_W[kept_W],
        tags_W=split.tags_W[kept_W],
        word_starts_E=ends(counts_E[kept_E]) if len(counts_E) else split.word_starts_E,
        spans_EW=split.spans_EW[kept_E],
        keys_E=split.keys_E[kept_E],
        passages=None,  # of which it has some no longer
    )


def _is_share(text: str) -> bool:
    try:
        return 0 < float(text) <= 1
    except ValueError:
        return False
