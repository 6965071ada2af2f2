"""From a checkpoint of some tasks to a model of others: heads and what else is a task's own, and where the rest begins.

MT-TaG, §5.2: a task that the mixture did not have takes the gate of a related one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fairseq_mtmoe.conditioning import TaskEmbeddings
from fairseq_mtmoe.errors import raise_invalid
from fairseq_mtmoe.moe.gates import TaskGate

HEADS = "heads."

logger = logging.getLogger(__name__)


def transferred(model: nn.Module, state: dict[str, Tensor], reuse_gate: str | None = None) -> dict[str, Tensor]:
    """A checkpoint's state for a model of other tasks; the state itself where they are the same.

    Heads of tasks that the model has not are left out; those that the checkpoint has not stay as they are, and so do
    their embeddings and gates, unless `reuse_gate` names the tasks of the checkpoint whose gates' mean all begin with.

    Args:
        model: with `heads`, in the order of the task ids.
        state: of a checkpoint, whose heads are in the order of its task ids.
        reuse_gate: comma-separated names.

    Raises:
        UserError: the checkpoint has no such task.
    """
    tasks, known = _tasks(model.state_dict()), _tasks(state)
    if tasks == known or not known:
        return state
    own = model.state_dict()
    moved = {key: value for key, value in state.items() if not key.startswith(HEADS) or _task(key) in tasks}
    moved |= {key: value for key, value in own.items() if key.startswith(HEADS) and _task(key) not in known}
    gates = _task_gates(model)
    if gates and reuse_gate:
        logger.info(f"the gates of {', '.join(tasks)} begin as the checkpoint's {reuse_gate} (--reuse-gate)")
    for key in gates:
        if key in state and state[key].dim() == own[key].dim():  # else it is of all tasks, and does not fit
            moved[key] = _rows(own[key], tasks, state[key], known, reuse_gate)
    for key in _task_embeddings(model) & state.keys():
        moved[key] = _rows(own[key], tasks, state[key], known, None)
    return moved


def _rows(own: Tensor, tasks: Sequence[str], saved: Tensor, known: Sequence[str], reuse: str | None) -> Tensor:
    """What has a row for each task, such as a layer's gates (T, N, H): those that the checkpoint has are its own."""
    if reuse:
        names = reuse.split(",")
        for name in names:
            if name not in known:
                raise_invalid("--reuse-gate", f"among the checkpoint's tasks {', '.join(known)}", name)
        return saved[[known.index(name) for name in names]].mean(0).expand_as(own).clone()
    rows = [saved[known.index(task)] if task in known else row for task, row in zip(tasks, own, strict=True)]
    return torch.stack([row.to(own) for row in rows])


def _task_gates(model: nn.Module) -> list[str]:
    """Their keys in the model's state."""
    return [f"{path}.weight" for path, module in model.named_modules() if isinstance(module, TaskGate)]


def _task_embeddings(model: nn.Module) -> set[str]:
    """Their keys in the model's state."""
    return {f"{path}.weight" for path, module in model.named_modules() if isinstance(module, TaskEmbeddings)}


def _task(key: str) -> str:
    return key.removeprefix(HEADS).rpartition(".")[0]


def _tasks(state: dict[str, Tensor]) -> list[str]:
    """The tasks that a state has heads of, in the order of their ids."""
    return list(dict.fromkeys(_task(key) for key in state if key.startswith(HEADS)))
