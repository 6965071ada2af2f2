"""The labels of heads' outputs in a checkpoint.

By them, its heads fit a task table in another order.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fairseq_mtmoe.checkpoints.optimizer_state import OptimizerState, Parameters, is_flat
from fairseq_mtmoe.checkpoints.rebuild import plain
from fairseq_mtmoe.checkpoints.sharding import State, averages_of
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.typed import Text, fault

OPTION = "head_labels"  # of the model, in JSON
COLUMNS = "exp_avg_sq_col"  # Adafactor's moment without a row for each label

Labels = Mapping[str, Sequence[str]]  # by task, in the order of its head's outputs


def labels_to_text(labels: Labels) -> str:
    """Return labels in JSON; an option with `${` would refer to another one."""
    return json.dumps(labels).replace("$", "\\u0024")


def labels_of(path: str, options: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the labels in a checkpoint's model options (UserError: damaged)."""
    try:
        labels: dict[str, list[str]] = json.loads(options.get(OPTION) or "{}")
        wrong = fault(labels, dict[Text, list[Text]], OPTION)
    except (TypeError, ValueError) as error:
        raise UserError(f"`{path}` has a `{OPTION}` that is not JSON.") from error
    if wrong is not None:
        raise UserError(f"`{path}` {wrong}.")
    return labels


def match_labels(path: str, state: State, wanted: Labels, parameters: Parameters = ()) -> None:
    """Put the outputs of a state's heads in the `wanted` order, in place.

    Raises `UserError` if a task has other labels.
    parameters: names and shapes of the trained parameters, to order the optimizer's moments, too.
    """
    saved = labels_of(path, plain((state.get("cfg") or {}).get("model")))
    orders: dict[str, list[int]] = {}
    for task in sorted(wanted.keys() & saved.keys()):
        before = saved[task]
        now = list(wanted[task])
        if sorted(before) != sorted(now):
            raise UserError(
                f"`{task}: labels` must be {', '.join(before)}, as in `{path}`, but is "
                f"{', '.join(now)} instead; a task with other labels needs a name of its own."
            )
        if before != now:
            order = [before.index(label) for label in now]
            orders |= {f"heads.{task}.weight": order, f"heads.{task}.bias": order}
    if not orders:
        return
    state["cfg"]["model"][OPTION] = labels_to_text({**saved, **wanted})
    for weights in (state["model"], *averages_of(state).values()):
        for name in orders.keys() & weights.keys():
            weights[name] = _ordered(weights[name], orders[name])
    moments = state.get("last_optimizer_state")
    if not moments or not parameters:
        return
    named = OptimizerState.from_saved(moments, parameters)
    for name in orders.keys() & named.keys():
        for key, value in named[name].items():
            if isinstance(value, Tensor) and key != COLUMNS:
                named[name][key] = _ordered(value, orders[name])
    state["last_optimizer_state"] = named.to_saved(
        moments, parameters, flat=is_flat(moments, parameters)
    )


def _ordered(rows: Tensor, order: Sequence[int]) -> Tensor:
    return rows[list(order)] if rows.dim() and len(rows) == len(order) else rows
