"""How the training data is drawn: from options to the plan, and what is said of it when an epoch begins."""

import logging
from argparse import Namespace
from typing import Any, Dict

from fairseq.logging import metrics

from fairseq_mtmoe.data.mixtures.training import TrainingPairs
from fairseq_mtmoe.data.sampling import SamplingPlan, Schedule, options_of
from fairseq_mtmoe.data.translation.pairs import PairLoader
from fairseq_mtmoe.errors import must_be
from fairseq_mtmoe.tasks._multitask.run_log import Journal

logger = logging.getLogger(__name__)


def plan_of(args: Namespace, loader: PairLoader) -> SamplingPlan:
    """The plan that the options ask for.

    Raises:
        UserError: an option is out of its range, or a pair has no weight.
    """
    weights = None
    if args.sampling_weights:
        for pair in loader.pairs:
            if pair.key not in args.sampling_weights:
                must_be("--sampling-weights", f"a dictionary with {pair.key}", args.sampling_weights)
        weights = tuple(float(args.sampling_weights[pair.key]) for pair in loader.pairs)
    schedule = Schedule(
        args.sampling_method,
        args.sampling_temperature,
        args.heating_coefficient,
        args.heating_epochs,
        args.heating_updates,
        weights,
    )
    return SamplingPlan(
        loader.shard_sizes,
        schedule,
        args.seed,
        args.virtual_epoch_size,
        args.virtual_data_size,
        [pair.key for pair in loader.pairs],
        args.given_duration,
    )


def announce(journal: Journal, dataset: TrainingPairs, epoch: int, run: Dict[str, Any]) -> None:
    """Say how an epoch's sentences are sampled; before the first one, also what is known of the `run`.

    Raises:
        UserError: neither the options nor a checkpoint say how long the temperature rises.
    """
    plan = dataset.plan
    plan.rules.schedule.check_duration()
    names = [key[len("main:") :] if key.startswith("main:") else key for key in plan.names]
    options = options_of(plan.rules, names)
    if not journal.has_begun:
        _warn_of_long_epochs(plan, epoch)
    del options["exceeds_pass"], options["virtual_data_size"], options["sampling_weights"]
    journal.begin(sizes=dict(zip(names, plan.sizes, strict=True)), **run, **options)
    shares = dict(zip(names, plan.probabilities(epoch).tolist(), strict=True))
    temperature = plan.temperature(epoch)
    journal.sampling(epoch, plan.place_at(epoch).update, temperature, shares)
    shown = ", ".join(f"{name} {share:.4f}" for name, share in shares.items())
    logger.info(f"epoch {epoch}: sampling temperature {temperature}, probabilities {shown}")
    if temperature is not None:
        metrics.log_scalar("sampling_temperature", temperature, weight=0, priority=900, round=4)
    for name, share in shares.items():
        metrics.log_scalar(f"{name}_probability", share, weight=0, priority=901, round=4)


def _warn_of_long_epochs(plan: SamplingPlan, epoch: int) -> None:
    wished, size = plan.rules.virtual_epoch_size, plan.epoch_size(plan.rules, plan.place_at(epoch).shard_epoch)
    if wished is not None and wished > size:
        logger.warning(
            f"--virtual-epoch-size {wished} is more than a pass over the data, which is then an epoch: {size} sentences"
            + ("" if plan.rules.schedule.takes_everything else "; --virtual-data-size sets the size of a pass")
        )
