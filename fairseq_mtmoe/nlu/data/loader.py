"""Loading of benchmark tasks for the mixtures, whole or a share (MT-TaG, §5.2)."""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np
from fairseq.data import FairseqDataset
from numpy.typing import NDArray

from fairseq_mtmoe.core.errors import raise_invalid
from fairseq_mtmoe.multitask.sampling.draw import stratified_share
from fairseq_mtmoe.nlu.data.reading import TaskSet
from fairseq_mtmoe.nlu.data.text_split import TextSplit
from fairseq_mtmoe.nlu.data.token_runs import ends
from fairseq_mtmoe.nlu.data.tokenizing import TokenizedSplit

logger = logging.getLogger(__name__)

# The fields of a span split with a row per sequence.
OF_WINDOWS = ("passages_S2", "offsets_S", "answers_S2")
GROUPS = 10  # strata of a regression's values

Split = TypeVar("Split", bound=TokenizedSplit | TextSplit)


class BenchmarkLoader(Generic[Split]):
    """Loader of one split of all tasks.

    It has one shard per set, such as `mnli/mismatched`.
    """

    def __init__(
        self,
        split: str,
        task_sets: Sequence[TaskSet],
        read: Callable[[TaskSet], Split],
        dataset_of: Callable[[Split], FairseqDataset],
    ) -> None:
        self.split = split
        self.keys = [task_set.key for task_set in task_sets]
        self.tasks = [task_set.name for task_set in task_sets]
        self.sets = list(map(read, task_sets))
        self._dataset_of = dataset_of

    def keep(self, few_of: Callable[[str, Split], Split]) -> None:
        """Replace each set by `few_of` it, and log the numbers of examples."""
        counts = []
        for n, task in enumerate(self.tasks):
            whole = len(self.sets[n])
            self.sets[n] = few_of(task, self.sets[n])
            counts.append(f"{self.keys[n]} {len(self.sets[n])} of {whole}")
        logger.info(f"[{self.split}] examples: {', '.join(counts)}")

    @property
    def shard_sizes(self) -> list[tuple[int]]:
        """Return the number of examples of each set; those of a span task are windows."""
        return [(split.num_rows,) for split in self.sets]

    def load(self, shards: Sequence[int] | None = None) -> list[FairseqDataset]:
        """Return the dataset of each task; a benchmark has no shards."""
        return list(map(self._dataset_of, self.sets))


def shares_of(text: str | None, tasks: Collection[str]) -> dict[str, float]:
    """Return each task's share of its training examples by `--train-share`.

    text: the option, such as `0.1`, `qqp=0.05,mnli=0.01` or both; shares are above 0, up to 1.
    """
    shares = {"": 1.0}  # "": of the tasks that are not named
    for part in filter(None, (text or "").split(",")):
        name, _, share = part.rpartition("=")
        try:
            shares[name] = float(share)
        except ValueError:
            shares[name] = 0
        if name not in ("", *tasks) or not 0 < shares[name] <= 1:
            rule = "fractions above 0 and up to 1, of all or of named tasks, such as 0.1,qqp=0.01"
            raise_invalid("--train-share", rule, text)
    return {name: shares.get(name, shares[""]) for name in tasks}


def drawn_examples(
    labels_E: NDArray[np.float64], count: int, seed: int, is_regression: bool
) -> NDArray[np.int64]:
    """Return the numbers of `count` examples, drawn as by `few_of`.

    Raises:
        UserError: there are more labels than `count`.
    """
    strata_E = _strata(labels_E, is_regression, min(GROUPS, count))
    num_strata = len(np.unique(strata_E))
    if count < num_strata:
        raise_invalid("--train-examples", f"at least {num_strata}, one example per label", count)
    return stratified_share(strata_E, count / len(labels_E), seed)


def _strata(labels_E: NDArray[np.float64], is_regression: bool, groups: int) -> NDArray[np.integer]:
    """Return each example's stratum: its label, or the group of its regression value.

    There are `groups` of equal size.
    """
    values_E = np.nan_to_num(labels_E)  # questions about passages have no labels
    if not is_regression:
        return values_E.astype(np.int64)
    bounds = np.quantile(values_E, np.arange(1, groups) / groups)
    strata_E: NDArray[np.integer] = np.searchsorted(bounds, values_E)
    return strata_E


def few_of(split: TokenizedSplit, share: float, seed: int, is_regression: bool) -> TokenizedSplit:
    """Return a share of a split's examples, stratified by label or regression value.

    Arrays are copied, so that the tokens of the others are freed.
    """
    kept_E = np.zeros(len(split), dtype=bool)
    kept_E[stratified_share(_strata(split.labels_E, is_regression, GROUPS), share, seed)] = True
    candidates_E, lengths_S, counts_E = map(
        np.diff, (split.row_offsets_E, split.starts_S, split.word_starts_E)
    )
    kept_S = np.repeat(kept_E, candidates_E)
    has_words = len(counts_E) > 0
    kept_W = np.repeat(kept_E, counts_E) if has_words else np.empty(0, dtype=bool)
    is_correct_S = split.is_correct_S
    if len(is_correct_S):
        is_correct_S = is_correct_S[kept_S]
    names = split.names
    if len(names):
        names = names.chosen(np.flatnonzero(kept_W if has_words else kept_S))
    return replace(
        split,
        tokens_T=split.tokens_T[np.repeat(kept_S, lengths_S)],
        starts_S=ends(lengths_S[kept_S]),
        **{name: getattr(split, name)[kept_S] for name in OF_WINDOWS if split.has_windows},
        segment_start_S=split.segment_start_S[kept_S],
        row_offsets_E=ends(candidates_E[kept_E]),
        labels_E=split.labels_E[kept_E],
        is_correct_S=is_correct_S,
        names=names,
        words_W=split.words_W[kept_W],
        tags_W=split.tags_W[kept_W],
        word_starts_E=ends(counts_E[kept_E]) if has_words else split.word_starts_E,
        spans_EW=split.spans_EW[kept_E],
        keys_E=split.keys_E[kept_E],
        passages=None,  # their numbers would differ
    )
