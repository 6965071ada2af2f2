"""The sampling plan in checkpoints, as plain containers.

They have the schedule and the position in the data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.multitask.sampling.plan import EpochStart, Part, SamplingPlan
from fairseq_mtmoe.multitask.sampling.schedule import Schedule


def options_of(schedule: Schedule, names: Sequence[str]) -> dict[str, Any]:
    """Return a schedule's values by option name, with weights by task name."""
    options = asdict(schedule)
    weights = schedule.sampling_weights
    options["sampling_weights"] = weights and dict(zip(names, weights, strict=True))
    if schedule.heating_coefficient > 0:
        return options
    return {**options, "heating_epochs": None, "heating_updates": None}


def changes(before: SamplingPlan, now: SamplingPlan) -> list[str]:
    """Return one text per changed option of the schedule: "x was 1 and is 2"."""
    old = options_of(before.schedule, before.names)
    new = options_of(now.schedule, now.names)
    return [f"{name} was {old[name]} and is {new[name]}" for name in old if old[name] != new[name]]


def saved_plan(plan: SamplingPlan, epoch: int) -> dict[str, Any]:
    """Return a plan's state at its current epoch or the next one, for checkpoints."""
    start = plan.go_to(epoch) if epoch <= plan.epoch else plan.after(plan.go_to(epoch - 1), 0)
    cursors = [[list(map(list, shards)), cursor] for shards, cursor in start.cursors.items()]
    return {
        "names": list(plan.names),
        "numbers": list(plan.numbers),
        "shard_sizes": list(map(list, plan.shard_sizes)),
        "seed": plan.seed,
        "rules": options_of(plan.schedule, plan.names),
        "place": {
            "epoch": start.epoch,
            "rules": options_of(start.schedule, plan.names),
            "epochs_left": start.epochs_left,
            "shard_epoch": start.shard_epoch,
            "update": start.update,
            "parts": list(map(list, start.parts)),
            "cursors": cursors,
        },
    }


def restored_plan(saved: Mapping[str, Any]) -> SamplingPlan:
    """Return the saved plan, at its position (UserError: the state is damaged)."""
    try:
        names = saved["names"]
        start = saved["place"]
        plan = SamplingPlan(
            saved["shard_sizes"], _schedule_of(saved["rules"], names), saved["seed"], names
        )
        plan.numbers = list(saved["numbers"])
        assert len(names) == len(plan.numbers) == len(plan.sizes)
        epoch = start["epoch"]
        schedule = _schedule_of(start["rules"], names)
        epochs_left = start["epochs_left"]
        shard_epoch = start["shard_epoch"]
        update = start["update"]
        cursors = {tuple(map(tuple, shards)): cursor for shards, cursor in start["cursors"]}
        parts = tuple(map(Part._make, start["parts"]))
        parts = parts or (Part(plan.epoch_size(schedule, shard_epoch), update),)
        plan.begin_at(EpochStart(epoch, schedule, epochs_left, shard_epoch, update, cursors, parts))
    except (
        KeyError,
        TypeError,
        ValueError,
        AssertionError,
        AttributeError,
        ZeroDivisionError,
    ) as error:
        rule = "must be as it was saved, but is damaged: resume from another checkpoint"
        how = "start the data again with `--reset-dataloader`"
        raise UserError(f"The checkpoint's position in the data {rule}, or {how}.") from error
    return plan


def _schedule_of(options: Mapping[str, Any], names: Sequence[str]) -> Schedule:
    values = {field.name: options[field.name] for field in fields(Schedule)}
    weights = values["sampling_weights"]
    if weights:
        values["sampling_weights"] = tuple(weights[name] for name in names)
    return Schedule(**values)
