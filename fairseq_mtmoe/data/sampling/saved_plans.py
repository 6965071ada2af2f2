"""The sampling plan in checkpoints, as plain containers: the schedule and the position in the data."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from fairseq_mtmoe.data.sampling.plan import EpochStart, Part, SamplingPlan
from fairseq_mtmoe.data.sampling.schedule import Schedule
from fairseq_mtmoe.errors import UserError

_MOST_DRAWN, _MOST_PASSES = 10**8, 100  # limits of a file's epoch: examples, plus passes over the data
_MOST_PARTS = 10**4


def options_of(schedule: Schedule, names: Sequence[str]) -> dict[str, Any]:
    """Return a schedule's values by option name, with weights by task name."""
    options, weights = asdict(schedule), schedule.sampling_weights
    options["sampling_weights"] = weights and dict(zip(names, weights, strict=True))
    return options if schedule.heating_coefficient > 0 else {**options, "heating_epochs": None, "heating_updates": None}


def changes(before: SamplingPlan, now: SamplingPlan) -> list[str]:
    """Return one text per changed option of the schedule: "x was 1 and is 2"."""
    old, new = options_of(before.schedule, before.names), options_of(now.schedule, now.names)
    return [f"{name} was {old[name]} and is {new[name]}" for name in old if old[name] != new[name]]


def saved_plan(plan: SamplingPlan, epoch: int) -> dict[str, Any]:
    """Return a plan's state at its current epoch or the next one, for checkpoints."""
    start = plan.start_of(epoch) if epoch <= plan.epoch else plan.after(plan.start_of(epoch - 1), 0)
    return {
        "names": list(plan.names),
        "numbers": list(plan.numbers),
        "shard_sizes": [list(sizes) for sizes in plan.shard_sizes],
        "seed": plan.seed,
        "rules": options_of(plan.schedule, plan.names),
        "place": {
            "epoch": start.epoch,
            "rules": options_of(start.schedule, plan.names),
            "epochs_left": start.epochs_left,
            "shard_epoch": start.shard_epoch,
            "update": start.update,
            "parts": [list(part) for part in start.parts],
            "cursors": [[[list(shard) for shard in shards], cursor] for shards, cursor in start.cursors.items()],
        },
    }


def restored_plan(saved: Mapping[str, Any]) -> SamplingPlan:
    """Return the saved plan, at its position (UserError: the state is damaged)."""
    try:
        return _restored(saved)
    except (KeyError, TypeError, ValueError, AssertionError, AttributeError, ZeroDivisionError) as error:
        rule = "must be as it was saved, but is damaged: resume from another checkpoint"
        how = "start the data again with `--reset-dataloader`"
        raise UserError(f"The checkpoint's position in the data {rule}, or {how}.") from error


def _restored(saved: Mapping[str, Any]) -> SamplingPlan:
    names, start = saved["names"], saved["place"]
    schedule, of_epoch = (_schedule_of(options, names) for options in (saved["rules"], start["rules"]))
    plan = SamplingPlan(saved["shard_sizes"], schedule, int(saved["seed"]), names)
    plan.numbers = [int(number) for number in saved["numbers"]]
    cursors = {tuple((int(a), int(b)) for a, b in shards): int(cursor) for shards, cursor in start["cursors"]}
    epoch, left, shard_epoch, update = (int(start[n]) for n in ("epoch", "epochs_left", "shard_epoch", "update"))
    assert min(epoch, left) >= 1 and min([shard_epoch, update, *cursors.values()]) >= 0 and abs(plan.seed) < 2**63
    assert len(plan.names) == len(plan.numbers) == len(set(plan.numbers)) == len(plan.sizes)
    most = _MOST_DRAWN + _MOST_PASSES * sum(plan.sizes)
    for known in (schedule, of_epoch):
        assert max(known.virtual_epoch_size or 0, known.virtual_data_size or 0) <= most
    parts = tuple(Part(int(size), int(before)) for size, before in start["parts"])
    size = plan.epoch_size(of_epoch, shard_epoch)
    assert len(parts) <= _MOST_PARTS and sum(part.size for part in parts) in (size, 0)
    assert all(part.size >= 1 and part.update >= update for part in parts)
    parts = parts or (Part(size, update),)
    plan.begin_at(EpochStart(epoch, of_epoch, left, shard_epoch, update, cursors, parts))
    return plan


def _schedule_of(options: Mapping[str, Any], names: Sequence[str]) -> Schedule:
    values = {field.name: options[field.name] for field in fields(Schedule)}
    weights = values["sampling_weights"]
    if weights:
        values["sampling_weights"] = tuple(weights[name] for name in names)
    else:
        values["sampling_weights"] = None
    return Schedule(**values)
