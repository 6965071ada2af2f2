"""What a checkpoint saves of its run's draws, in plain containers: the rules, and the position in the data.

With it a run goes on where it was, also under other rules; without it the position is worked out from the beginning.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from fairseq_mtmoe.data.sampling.plan import EpochStart, Part, SamplingPlan
from fairseq_mtmoe.data.sampling.rules import Rules
from fairseq_mtmoe.data.sampling.schedule import Schedule
from fairseq_mtmoe.errors import UserError

_MOST_DRAWN, _MOST_PASSES = 10**8, 100  # examples of an epoch that a file may ask for: so many, and passes of the data
_MOST_PARTS = 10**4


def options_of(rules: Rules, names: Sequence[str]) -> dict[str, Any]:
    """Rules by the names of the options that they come from."""
    schedule = rules.schedule
    heats = schedule.heating_coefficient > 0
    return {
        "sampling_method": schedule.method,
        "sampling_temperature": schedule.temperature,
        "heating_coefficient": schedule.heating_coefficient,
        "heating_epochs": schedule.heating_epochs if heats else None,
        "heating_updates": schedule.heating_updates if heats else None,
        "natural_from_epoch": schedule.natural_from_epoch,
        "sampling_weights": schedule.weights and dict(zip(names, schedule.weights, strict=True)),
        "virtual_epoch_size": rules.virtual_epoch_size,
        "virtual_data_size": rules.virtual_data_size,
        "exceeds_pass": rules.exceeds_pass,
    }


def changes(before: SamplingPlan, now: SamplingPlan) -> list[str]:
    """What differs between the rules of a run so far and those from now on, an option each: "x was 1 and is 2"."""
    old, new = options_of(before.rules, before.names), options_of(now.rules, now.names)
    return [f"{name} was {old[name]} and is {new[name]}" for name in old if old[name] != new[name]]


def saved_plan(plan: SamplingPlan, epoch: int) -> dict[str, Any]:
    """What to save of a plan at an epoch that it draws, or at the one after."""
    start = plan.start_of(epoch) if epoch <= plan.epoch else plan.after(plan.start_of(epoch - 1), 0)
    return {
        "names": list(plan.names),
        "numbers": list(plan.numbers),
        "shard_sizes": [list(sizes) for sizes in plan.shard_sizes],
        "seed": plan.seed,
        "rules": options_of(plan.rules, plan.names),
        "place": {
            "epoch": start.epoch,
            "rules": options_of(start.rules, plan.names),
            "epochs_left": start.epochs_left,
            "shard_epoch": start.shard_epoch,
            "update": start.update,
            "parts": [[part.size, part.update] for part in start.parts],
            "cursors": [[[list(shard) for shard in shards], cursor] for shards, cursor in start.cursors.items()],
        },
    }


def restored_plan(saved: Mapping[str, Any]) -> SamplingPlan:
    """The plan of which this was saved, at the same position.

    Raises:
        UserError: it is none.
    """
    try:
        return _restored(saved)
    except (KeyError, TypeError, ValueError, AssertionError, AttributeError, ZeroDivisionError) as error:
        raise UserError(
            "The checkpoint's memory of what was drawn must be as it was saved, but is damaged: go on from another "
            "checkpoint, or begin the data anew with `--reset-dataloader`."
        ) from error


def restored_plan_0_1_0(options: Mapping[str, Any], plan: SamplingPlan, epoch: int, update: int) -> SamplingPlan:
    """The plan of a run of version 0.1.0, whose checkpoints have no more than their options.

    Args:
        options: the checkpoint's; where they do not say how it drew, it drew by the rules of `plan`.
        plan: of the run that goes on, with the same data.
        epoch: the checkpoint's.
        update: how many updates were made.
    """
    try:
        weights = options["sampling_weights"]
        assert not options["sampling_weights_from_file"]
        known = {
            **options,
            "sampling_weights": ast.literal_eval(weights) if isinstance(weights, str) else None,
            "heating_epochs": options["heating_epochs"] or options["max_epoch"],
            "heating_updates": None,
            "exceeds_pass": True,
        }
        return plan.as_of_0_1_0(epoch, update, _rules_of(known, plan.names), int(options["seed"]))
    except (KeyError, TypeError, ValueError, SyntaxError, AssertionError):
        return plan.as_of_0_1_0(epoch, update)


def _restored(saved: Mapping[str, Any]) -> SamplingPlan:
    names, start = saved["names"], saved["place"]
    rules, rules_of_epoch = (_rules_of(options, names) for options in (saved["rules"], start["rules"]))
    plan = SamplingPlan(saved["shard_sizes"], rules.schedule, int(saved["seed"]), names=names)
    plan.rules, plan.numbers = rules, [int(number) for number in saved["numbers"]]
    cursors = {tuple((int(a), int(b)) for a, b in shards): int(cursor) for shards, cursor in start["cursors"]}
    counts = [int(start[name]) for name in ("epoch", "epochs_left", "shard_epoch", "update")]
    epoch, epochs_left, shard_epoch, update = counts
    assert len(plan.names) == len(plan.numbers) == len(plan.sizes) and min(epoch, epochs_left) >= 1
    assert min([shard_epoch, update, *cursors.values()]) >= 0
    assert len(set(plan.numbers)) == len(plan.numbers) and abs(plan.seed) < 2**63
    most = _MOST_DRAWN + _MOST_PASSES * sum(plan.sizes)
    for known in (rules, rules_of_epoch):
        assert max(known.virtual_epoch_size or 0, known.virtual_data_size or 0) <= most
    parts = tuple(Part(int(size), int(before)) for size, before in start.get("parts", ()))  # 0.1.11 and older had one
    size = plan.epoch_size(rules_of_epoch, shard_epoch)
    assert len(parts) <= _MOST_PARTS and sum(part.size for part in parts) in (size, 0)
    assert all(part.size >= 1 and part.update >= update for part in parts)
    parts = parts or (Part(size, update),)
    plan.begin_at(EpochStart(epoch, rules_of_epoch, epochs_left, shard_epoch, update, cursors, parts))
    return plan


def _rules_of(options: Mapping[str, Any], names: Sequence[str]) -> Rules:
    weights = options["sampling_weights"]
    schedule = Schedule(
        options["sampling_method"],
        options["sampling_temperature"],
        options["heating_coefficient"],
        options["heating_epochs"],
        options["heating_updates"],
        tuple(weights[name] for name in names) if weights else None,
        options.get("natural_from_epoch"),  # 0.1.4 and older had none
    )
    return Rules(schedule, options["virtual_epoch_size"], options["virtual_data_size"], bool(options["exceeds_pass"]))
