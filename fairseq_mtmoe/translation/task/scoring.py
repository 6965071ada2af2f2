"""BLEU and chrF++ of a validation's translations: `--eval-bleu` and `--eval-chrf`.

Search, spelling and references are those of `mtmoe evaluate`. sacreBLEU counts n-grams by sentence,
so the counts of batches and ranks add up to those of the whole set.
"""

import json
import logging
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from statistics import fmean
from typing import Any

import numpy as np
import torch
from fairseq.data import encoders
from fairseq.logging import metrics
from fairseq.tasks import FairseqTask
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from torch import Tensor, distributed, nn

from fairseq_mtmoe.core.errors import UserError, flag, raise_invalid, visible
from fairseq_mtmoe.moe.evaluation_routing import routed_by_prices
from fairseq_mtmoe.multitask.validation import Group, uncounted
from fairseq_mtmoe.report.scores import bleu_tokenizer
from fairseq_mtmoe.slots import expert_layers
from fairseq_mtmoe.translation.data.pairs import PairLoader
from fairseq_mtmoe.translation.decode.beam_search import BeamSearch
from fairseq_mtmoe.translation.decode.decode import Decoding, Direction, searched
from fairseq_mtmoe.translation.decode.test_sets import (
    FAIRSEQ,
    TEXT,
    References,
    Speller,
    load_references,
)
from fairseq_mtmoe.translation.decode.translator import UNKNOWN, joining_of

SEARCH = ("beam", "lenpen", "max_len_a", "max_len_b")
COUNTS = {"bleu": 10, "chrf": 24}  # number of sacreBLEU's statistics per sentence

logger = logging.getLogger(__name__)


def check_best_metric(metric: str, args: Namespace) -> None:
    """Check that a validation computes the best checkpoint's metric (UserError).

    Only scores of translations are checked.
    """
    name = metric.rpartition("_")[2]
    if name in COUNTS and not getattr(args, f"eval_{name}"):
        raise UserError(
            f"`{flag(f'eval_{name}')}` is required with `--best-checkpoint-metric {metric}`."
        )


class ValidationScores:
    """Translates validation batches, each of one language pair, and scores them."""

    def __init__(self, task: Any) -> None:
        args = task.args
        self._task = task
        self._data = args.data
        # Names of the metrics in the log
        self.asked = [name for name in COUNTS if getattr(args, f"eval_{name}")]
        search = _dictionary("--eval-bleu-args", args.eval_bleu_args)
        for name, value in search.items():
            if name not in SEARCH or type(value) not in (int, float):
                rule = f"a dictionary of numbers with keys among {', '.join(SEARCH)}"
                raise_invalid("--eval-bleu-args", rule, {name: value})
        try:
            self._decoding = Decoding(**search)
        except UserError as error:
            raise UserError(
                f"`--eval-bleu-args` must have options of a search, but: {error}"
            ) from error
        detok_args = _dictionary("--eval-bleu-detok-args", args.eval_bleu_detok_args)
        self._detokenizer = encoders.build_tokenizer(
            Namespace(tokenizer=args.eval_bleu_detok, **detok_args)
        )
        # The last model, whether its experts are sharded, and its search: a dense model may become
        # sparse between two validations.
        self._search: tuple[nn.Module, bool, BeamSearch] | None = None
        self._references: dict[tuple[str, str], References] = {}

    def check(self, loader: PairLoader) -> None:
        """Check that the split's references are in one file.

        Raises:
            UserError: it is combined with others.
        """
        if loader.has_more:
            raise UserError(
                "`--combine-valid-subsets` cannot be combined with "
                f"`{flag(f'eval_{self.asked[0]}')}`; `--valid-subset "
                f"{loader.split},{loader.split}1` scores each subset by itself."
            )

    def counts(
        self, sample: Mapping[str, Any], model: nn.Module, subset: str, pairs: Iterable[str]
    ) -> dict[str, Tensor]:
        """Return sacreBLEU's statistics of a batch's translations; 0 for other pairs."""
        pair = sample["task"]
        numbers = sample["id"].tolist()
        hypotheses = self._translated(sample, model, pair)
        if (subset, pair) not in self._references:
            form = FAIRSEQ if self._task.args.eval_tokenized_bleu else TEXT
            self._references[subset, pair] = load_references(
                self._data, subset, pair, self._speller, form
            )
        references = self._references[subset, pair]
        chosen = []
        for further in references.more:
            chosen.append([further[number] or None for number in numbers])
        lines = [references.lines[number] for number in numbers]
        if self._task.args.eval_bleu_print_samples:
            # The screen shows a pair's first sentence, which is the same in all validations.
            row = 0
            extra = None
            if 0 in numbers:
                row = numbers.index(0)
                extra = {"for_screen": True}  # see training/screen.py
            logger.info(f"example hypothesis ({pair}): {visible(hypotheses[row])}", extra=extra)
            logger.info(f"example reference ({pair}): {visible(lines[row])}", extra=extra)
        counts = {f"_{other}_{name}": _zeros(name) for other in pairs for name in self.asked}
        for name in self.asked:
            metric = self._metric(name, pair)
            statistics = metric._extract_corpus_statistics(hypotheses, [lines, *chosen])
            counts[f"_{pair}_{name}"] = torch.tensor(np.sum(statistics, axis=0), dtype=torch.double)
        return counts

    def log(
        self,
        logging_outputs: Sequence[Mapping[str, Any]],
        pairs: Sequence[str],
        groups: Iterable[Group],
    ) -> None:
        """Log the scores of each pair, the means of each group, and the mean of all pairs."""
        for name in self.asked:
            for pair in pairs:
                key = f"_{pair}_{name}"
                counts = [log[key].cpu() for log in logging_outputs if key in log]
                # A tensor: meters are saved with a checkpoint, which must not contain numpy's
                # types.
                metrics.log_scalar(key, sum(counts, _zeros(name)))
            pair_groups = [Group(pair, (pair,)) for pair in pairs]
            for group in [*pair_groups, *groups, Group("", tuple(pairs))]:
                mean = partial(self._mean, name=name, pairs=group.tasks)
                metrics.log_derived(f"{group.name}_{name}".removeprefix("_"), mean, 1000)

    def figures(self, meters: Mapping[str, Any], pairs: Sequence[str]) -> dict[str, float]:
        """Return each metric's mean over pairs, for the run log."""
        means = {}
        for name in self.asked:
            mean = self._mean(meters, name, pairs)
            if mean is not None:
                means[name] = mean
        return means

    def _mean(self, meters: Mapping[str, Any], name: str, pairs: Sequence[str]) -> float | None:
        scores = []
        for pair in pairs:
            meter = meters.get(f"_{pair}_{name}")
            if meter is not None and meter.sum.any():
                counts = [int(count) for count in meter.sum.tolist()]
                score = self._metric(name, pair)._compute_score_from_stats(counts).score
                scores.append(float(score))
        return round(fmean(scores), 2) if scores else None

    def _metric(self, name: str, pair: str) -> Any:
        if name == "chrf":
            return CHRF(word_order=2)
        tokenizer = "none"
        if not self._task.args.eval_tokenized_bleu:
            tokenizer = bleu_tokenizer(pair.rpartition("-")[2])
        return BLEU(tokenize=tokenizer, force=True)

    def _translated(self, sample: Mapping[str, Any], model: nn.Module, pair: str) -> list[str]:
        direction = Direction.of(self._task, pair)
        inputs = sample["net_input"]["src_tokens"]
        word = direction.first_word
        prefixes = None
        if word is not None:
            prefixes = inputs.new_full((len(inputs), 1), word)
        search = self._search_with(model)
        with uncounted(model, self._task.movement), routed_by_prices(model):
            outputs = searched(search, [model], dict(sample), direction, prefixes)
        texts = [self._speller(output[0]["tokens"].tolist(), UNKNOWN) for output in outputs]
        if self._detokenizer is None:
            return texts
        return list(map(self._detokenizer.decode, texts))

    def _search_with(self, model: nn.Module) -> BeamSearch:
        layers = expert_layers(model).values()
        is_sharded = any(layer.experts.placement.is_sharded for layer in layers)
        if self._search is None or self._search[0] is not model or self._search[1] != is_sharded:
            generator = FairseqTask.build_generator(self._task, [model], self._decoding.generation)
            search = BeamSearch(generator, _any_goes_on if is_sharded else None)
            self._search = (model, is_sharded, search)
        return self._search[2]

    @cached_property
    def _speller(self) -> Speller:
        dictionary = self._task.target_dictionary
        joining = self._task.args.eval_bleu_remove_bpe
        if joining is None:
            joining = joining_of(self._data, dictionary)
        directions = [Direction.of(self._task, pair) for pair in self._task.lang_pairs]
        tokens = [direction.first_word or direction.first_input for direction in directions]
        return Speller(dictionary, joining, filter(None, tokens))


def _zeros(metric: str) -> Tensor:
    return torch.zeros(COUNTS[metric], dtype=torch.double)


def _any_goes_on(goes_on: bool) -> bool:
    """Return whether any rank has unfinished sentences; a collective call."""
    device = torch.device("cuda" if distributed.get_backend() == "nccl" else "cpu")
    left = torch.tensor(float(goes_on), device=device)
    distributed.all_reduce(left, op=distributed.ReduceOp.MAX)
    return bool(left.item())


def _dictionary(option: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise_invalid(option, "a dictionary as JSON", text)
    return value
