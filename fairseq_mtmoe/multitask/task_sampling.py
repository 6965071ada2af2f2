"""Sampling of training data: the plan that the options ask for, and its log."""

import logging
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, NoReturn

from fairseq import utils
from fairseq.logging import metrics
from torch import nn

from fairseq_mtmoe.core.errors import UserError, flag, raise_invalid
from fairseq_mtmoe.multitask.mixtures.training import TrainingMixture
from fairseq_mtmoe.multitask.run_log import TrainingRunLog
from fairseq_mtmoe.multitask.sampling.plan import SamplingPlan
from fairseq_mtmoe.multitask.sampling.saved_plans import options_of
from fairseq_mtmoe.multitask.sampling.schedule import UNCERTAINTY, Schedule

logger = logging.getLogger(__name__)


def plan_of(
    args: Namespace, names: Sequence[str], shard_sizes: Sequence[Sequence[int]]
) -> SamplingPlan:
    """Return the sampling plan of the options for tasks of these names and sizes.

    If a task lacks an option, the default counts.
    """
    options: dict[str, Any] = {}
    for field in fields(Schedule):
        options[field.name] = getattr(args, field.name, field.default)
    heating = ("heating_epochs", "heating_updates")
    durations = [name for name in heating if options[name] is not None]
    if durations and options["sampling_method"] == UNCERTAINTY:
        raise UserError(
            f"`{flag(durations[0])}` cannot be combined with `--sampling-method {UNCERTAINTY}`, in "
            "which the model decides how often each task trains."
        )
    if not durations:
        options["heating_epochs"] = args.max_epoch or None
    weights = options["sampling_weights"]
    options["sampling_weights"] = None
    if weights:
        for name in names:
            if name not in weights:
                raise_invalid("--sampling-weights", f"a dictionary with {name}", weights)
        options["sampling_weights"] = tuple(float(weights[name]) for name in names)
    return SamplingPlan(shard_sizes, Schedule(**options), args.seed, names, bool(durations))


def log_run(
    run_log: TrainingRunLog,
    dataset: TrainingMixture,
    epoch: int,
    run: Callable[[], dict[str, Any]],
    names: Sequence[str],
) -> None:
    """Check the schedule; in a process's first epoch also write the event `run`.

    Warns of options that have no effect. run: returns the event's fields. names: those that the
    log shows for the tasks.
    """
    plan = dataset.plan
    schedule = plan.schedule
    schedule.check_duration()
    if run_log.has_begun:
        return
    about = run()
    updates = dataset.updates_of_epoch
    most_updates = about["options"].get("max_update") or 0
    is_only = epoch == 1 and (about["options"].get("max_epoch") == 1 or 0 < most_updates <= updates)
    if is_only and schedule.heating_coefficient > 0 and schedule.heating_epochs is not None:
        logger.warning(
            "--heating-coefficient has no effect, and the temperature stays at "
            f"{schedule.sampling_temperature}: it rises from epoch to epoch, and the run ends "
            f"within its first epoch of {updates} updates; use --heating-updates to heat within "
            "an epoch, or --virtual-epoch-size for shorter epochs"
        )
    options = options_of(schedule, names)
    del options["virtual_data_size"], options["sampling_weights"]
    run_log.write(
        "run", sizes=dict(zip(names, plan.sizes, strict=True)), **about, **options, seed=plan.seed
    )


def announce_part(
    run_log: TrainingRunLog,
    plan: SamplingPlan,
    epoch: int,
    part: int,
    updates: int,
    names: Sequence[str],
) -> None:
    """Log how a part of an epoch, which begins after `updates` updates, is sampled."""
    shares = dict(zip(names, plan.probabilities(epoch, part=part).tolist(), strict=True))
    temperature = plan.temperature(epoch, part=part)
    draws_candidates = plan.draws_candidates(epoch)
    # Not `update`: events are ordered by that field, and old logs order these events by epochs.
    position = {"epoch": epoch, "part": part, "updates_before": updates}
    drawn = {
        "temperature": temperature,
        "probabilities": shares,
        "of_candidates": draws_candidates,
    }
    run_log.write("sampling", **position, **drawn)
    if draws_candidates:
        logger.info(
            f"epoch {epoch}: equally many candidates of each task; the most uncertain ones train"
        )
        return  # each update logs the tasks' shares
    shown = ", ".join(f"{name} {share:.4f}" for name, share in shares.items())
    heat = "" if temperature is None else f" temperature {temperature},"
    within = f", from update {updates} on" if part else ""
    logger.info(f"epoch {epoch}{within}: sampling{heat} probabilities {shown}")
    if temperature is not None:
        metrics.log_scalar("sampling_temperature", temperature, weight=0, priority=900, round=4)
    for name, share in shares.items():
        metrics.log_scalar(f"{name}_probability", share, weight=0, priority=901, round=4)


def refuse_too_long(shortest: int, max_tokens: int | None, max_positions: Any) -> NoReturn:
    """Raise the `UserError` of an epoch whose examples are all too long.

    shortest: number of tokens of the shortest example.
    """
    if max_tokens is not None and shortest > max_tokens:
        raise_invalid(
            "--max-tokens",
            f"at least {shortest}, the length of the shortest training example",
            max_tokens,
        )
    raise UserError(
        f"Training examples must have at most {max_positions} tokens, the limit of model and task, "
        f"but the shortest of the epoch has {shortest}."
    )


def on_device_of(sample: dict[str, Any], model: nn.Module) -> dict[str, Any]:
    """Return a batch on the model's device."""
    device = next(model.parameters()).device
    moved_sample: dict[str, Any] = utils.apply_to_sample(lambda tensor: tensor.to(device), sample)
    return moved_sample
