"""Add a task to a checkpoint: a row in each table with a row per task, and a head.

CA-MTL, §4.4 and table 8: the table of task embeddings gets a row, which starts as another task's
row, as the mean of all, or at random. So does every other tensor that grows with the number of
tasks, such as task gates. A fixed gate has one expert per task: the new task's is a copy of another
task's.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_mtmoe.checkpoints.key_maps import (
    EXPERTS,
    GATE,
    MOE,
    VOCABULARY,
    without_best,
)
from fairseq_mtmoe.checkpoints.optimizer_state import (
    OptimizerState,
    Parameters,
    is_flat,
    map_entry,
    shapes_of,
    trained_parameters,
)
from fairseq_mtmoe.checkpoints.sharding import State, averages_of, is_shared_part
from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.moe.gates import SOFTMAX_GATE_STD

RANDOM = "random"
XAVIER = "xavier"
MEAN = "mean"
RANDOM_STD = 0.02  # BERT's standard deviation of embeddings


@dataclass(frozen=True)
class Shapes:
    """Shapes of a model's state in its order, and its trained parameters."""

    shapes: Mapping[str, Sequence[int]]
    parameters: Parameters

    @classmethod
    def of(cls, model: nn.Module) -> Shapes:
        """Return a model's shapes and parameters; it may be on the meta device."""
        shapes = dict(shapes_of(model.state_dict().items()))
        return cls(shapes, shapes_of(trained_parameters(model)))


@dataclass(frozen=True)
class NewTask:
    """The task to add.

    Attributes:
        tasks: the checkpoint's tasks, ordered by id; they own a larger table's last rows.
        begins_as: comma-separated names of tasks whose mean row the new row starts as; or `mean`,
            of all tasks; or `random`, from N(0, 0.02²), or `xavier`, Xavier's uniform distribution:
            then gates start as in a new model. A fixed gate's expert is a copy of the one task's;
            for `mean` of the first task's, since a mean of experts computes nothing of use.
        head: parameters that only the new task has, by name.
        seed: of the random numbers.
        langs: the checkpoint's languages, which own the last rows of a larger vocabulary.
    """

    tasks: Sequence[str]
    begins_as: str
    head: Mapping[str, Tensor]
    seed: int
    langs: Sequence[str] = ()

    @property
    def expert_of(self) -> str:
        """The task whose expert of fixed gates is copied."""
        return self.tasks[0] if self.begins_as == MEAN else self.begins_as


def with_task(state: State, new: NewTask, before: Shapes, after: Shapes) -> State:
    """Return a copy of a checkpoint for the model with the new task.

    It may be whole or a shared part; options are unchanged. Moments of new rows are 0; an
    optimizer's state of other shapes is dropped (UserError: the weights do not fit).
    """
    rows = _NewRows(new, before, after)
    if rows.experts and is_shared_part(state):
        raise UserError(
            "The checkpoint keeps its experts in other files, so none can be copied; first join "
            "them with `mtmoe reshard --single-file`."
        )
    for name in rows.grown:
        if name not in state["model"] or state["model"][name].shape != before.shapes[name]:
            raise UserError(
                f"The checkpoint's `{name}` must have the shape that its options give, "
                f"{tuple(before.shapes[name])}."
            )
    result: State = {**state, "model": rows.added_to(state["model"])}
    result["extra_state"] = extra = without_best(state.get("extra_state") or {})
    for name, average in averages_of(state).items():
        extra[name] = rows.added_to(average)
    saved = result.pop("last_optimizer_state", None)
    larger = saved
    if isinstance(saved, Mapping):
        larger = _moments(saved, rows.grown, before.parameters, after.parameters)
    if larger is not None:
        result["last_optimizer_state"] = larger
    if is_shared_part(state):
        expected = {*state["experts"]["keys"], *new.head}
        names = dict(enumerate(dict(after.parameters)))
        keys = [name for name in after.shapes if name in expected]
        result["experts"] = {**state["experts"], "keys": keys, "optimizer_names": names}
    return result


class _NewRows:
    """Rows of a new task, equal in model and averages.

    Attributes:
        grown: tensors that get a row.
        experts: experts of fixed gates. Where there were more than tasks, the first one of no task
            is replaced.
    """

    def __init__(self, new: NewTask, before: Shapes, after: Shapes) -> None:
        self._new = new
        self._order = list(after.shapes)
        self.grown = [
            name for name in before.shapes if before.shapes[name] != after.shapes.get(name)
        ]
        self.experts = fixed_experts(before.shapes)
        if not self.grown and not self.experts:
            raise UserError(
                "The checkpoint has no task embeddings or gates to extend: use it unchanged with "
                "`--finetune-from-model`."
            )
        self._sources = list(new.tasks) if new.begins_as == MEAN else new.begins_as.split(",")
        self._is_drawn = new.begins_as in (RANDOM, XAVIER)
        named_tasks = [] if self._is_drawn else self._sources
        for name in named_tasks:
            if name not in new.tasks:
                tasks = ", ".join(new.tasks)
                rule = f"{RANDOM}, {XAVIER} or {MEAN}, or among the checkpoint's tasks {tasks}"
                raise_invalid("--embedding-from", rule, new.begins_as)
        if self.experts and new.expert_of not in new.tasks:
            rule = (
                f"one of the tasks {', '.join(new.tasks)}, whose expert the new task's is a copy of"
            )
            raise_invalid("--embedding-from", rule, new.begins_as)
        self._drawn: dict[str, Tensor] = {}
        self._generator = torch.Generator().manual_seed(new.seed)

    def added_to(self, named: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return a model's state with the rows and the head, in the new model's order."""
        like = next(value for value in named.values() if value.is_floating_point())
        changed = dict.fromkeys([*self.grown, *self.experts])
        values = dict(named) | {
            name: self._with_row(name, named[name]) for name in changed if name in named
        }
        values |= {name: value.to(like.dtype) for name, value in self._new.head.items()}
        result = copy.copy(named)  # with the attributes of a model's state
        result.clear()
        result.update(
            (name, values[name]) for name in dict.fromkeys([*self._order, *named]) if name in values
        )
        return result

    def _with_row(self, name: str, table: Tensor) -> Tensor:
        key = "vocabulary" if name.endswith(VOCABULARY) else name
        end = len(table) if name in self.grown else len(self._new.tasks)
        if name in self.experts:
            row = table[self._new.tasks.index(self._new.expert_of)]
        elif self._is_drawn:
            if key not in self._drawn:
                self._drawn[key] = self._draw(name, table)
            row = self._drawn[key]
        else:
            owners = self._new.langs if key == "vocabulary" else self._new.tasks
            first = end - len(owners)
            rows = [first + owners.index(source) for source in self._sources]
            row = table[rows].float().mean(0)
        return torch.cat([table[:end], row.to(table).unsqueeze(0), table[end + 1 :]])

    def _draw(self, name: str, table: Tensor) -> Tensor:
        row = torch.empty(table.shape[1:])
        is_gate = name.endswith(GATE)
        if is_gate or self._new.begins_as == RANDOM:
            return row.normal_(
                std=SOFTMAX_GATE_STD if is_gate else RANDOM_STD, generator=self._generator
            )
        bound = (6 / (len(table) + 1 + table.shape[1])) ** 0.5
        return row.uniform_(-bound, bound, generator=self._generator)


def options_with_task(
    options: Mapping[str, Any], tasks: Sequence[str], name: str
) -> dict[str, Any]:
    """Return a model's options with one more task (UserError: gates cannot grow).

    If all experts of fixed gates have tasks, there is one more expert.
    """
    larger = dict(options)
    if options.get("task_names"):
        larger["task_names"] = f"{options['task_names']},{name}"
    gates = set((options.get("expert_gates") or "").split(","))
    count = options.get("num_experts", 0)
    if "fixed" in gates and count <= len(tasks):
        if gates != {"fixed"}:
            raise UserError(
                f"The checkpoint has {len(tasks)} tasks and {count} experts, and only models whose "
                "gates are all fixed can grow: train the model with more `--num-experts`."
            )
        larger["num_experts"] = count + 1
    return larger


def fixed_experts(names: Collection[str]) -> list[str]:
    """Return the names of experts whose gate is fixed: it has no weights."""
    return [
        name for name in names if EXPERTS in name and name.partition(MOE)[0] + GATE not in names
    ]


def _moments(
    saved: Mapping[str, Any], grown: Sequence[str], before: Parameters, after: Parameters
) -> dict[str, Any] | None:
    """Return the optimizer's state for the new parameters; None if it does not fit."""
    try:
        named = OptimizerState.from_saved(saved, before)
    except UserError:
        return None
    larger = [(name, shape) for name, shape in before if name in grown and name in named]
    if named.misfit(larger) is not None:
        return None
    for name, shape in larger:
        named[name] = map_entry(
            named[name], shape, lambda value: torch.cat([value, torch.zeros_like(value[:1])])
        )
    return named.to_saved(saved, after, flat=is_flat(saved, before))
