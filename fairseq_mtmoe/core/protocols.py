"""The hooks of tasks and models between packages, beyond fairseq's interfaces.

Our tasks and models inherit a base class whose hooks do nothing, and override some. `training_task`
and `training_model` return an object with all hooks, also for fairseq's own tasks and models.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TaskDescription:
    """A task's description in a sentence.

    tokens: the sentence in the model's dictionary, without an end token.
    is_source: whether this run trains adapters for other tasks (PEMT); None if unknown.
    language_symbols: number of language symbols at the end of the dictionary.
    """

    name: str
    text: str
    tokens: Sequence[int]
    is_source: bool | None = None
    language_symbols: int = 0


class TrainingTask:
    """A task that the trainer notifies, and asks about its tasks and checkpoints.

    num_updates: number of updates so far, set before each epoch.
    task_names: names of the task ids.
    head_labels: the labels in the order of the head's outputs, by task; or with their texts.
    """

    num_updates: int = 0
    task_names: list[str]
    head_labels: Mapping[str, Sequence[str]] = {}

    def begins(self, options: Mapping[str, Any], device: Any, model: Any) -> None:
        """A run begins; `options` are those that differ from the defaults."""

    def trained(self, update: int, figures: Mapping[str, Any]) -> None:
        """The progress bars show these means, every `--log-interval` updates."""

    def sparsified(self, update: int, num_experts: int, model: Any) -> None:
        """The model got this number of experts per layer after this number of updates."""

    def ended(self) -> None:
        """The training is over; not called if a signal ends it."""

    def expert_comm(
        self, update: int, updates: int, layers: Mapping[str, Mapping[str, float]]
    ) -> None:
        """Take each layer's `seconds` and `bytes` of all-to-all.

        They are those of the last `updates` updates.
        """

    def begin_step(self) -> None:
        """A step begins; if the last step's figures were not reduced, it made no update."""

    def gather(self) -> None:
        """Gather state before a rank saves the state of all ranks; a collective call."""

    def groups(self) -> Sequence[Any]:
        """Return the groups of tasks, with names, that a validation averages.

        The one with the largest data comes first.
        """
        return ()

    def check_vocabulary(self, state: Mapping[str, Any] | None, path: str) -> None:
        """Compare the dictionaries with a checkpoint's `task_state` (UserError: others)."""

    def described(self) -> TaskDescription | None:
        """Return the description of the single task; None if it has none.

        Raises `UserError` if there are several tasks.
        """
        return None

    @classmethod
    def check_given(cls, options: Namespace, given: Mapping[str, Any]) -> None:
        """Check the task's options against those given (UserError)."""

    def checkpoint_to_go_on_from(self) -> str | None:
        """Return the checkpoint from which a run continues or starts, or None."""
        return None

    def options_to_go_on_with(self) -> Mapping[str, Any]:
        """Return the options of that checkpoint's model; empty without a checkpoint."""
        return {}

    def take_up(self, path: str, state: Mapping[str, Any], goes_on: bool) -> None:
        """Take over what a run keeps of its first checkpoint.

        If it `goes_on`, check its tasks (UserError).
        """


class TrainingModel:
    """A model that may take task ids, become sparse, or have source tasks (PEMT).

    task_names: names of the task ids; empty without ids.
    accepts_task_ids: whether the forward pass takes `task_ids` (B,).
    dense_updates: number of updates before it becomes sparse.
    """

    task_names: Sequence[str] = ()
    accepts_task_ids: bool = False
    dense_updates: int = 0

    @property
    def is_dense(self) -> bool:
        """Whether the model has experts' places, but no experts yet."""
        return False

    @property
    def gates_event(self) -> tuple[str, dict[str, Any]] | None:
        """Name of its event in the run log, and fields for the sources.

        The fields name the sources in the order of gate weights.
        """
        return None

    @property
    def noted_options(self) -> Mapping[str, str]:
        """Options that it determines while it is built, for its checkpoints."""
        return {}

    @property
    def constants(self) -> Set[str]:
        """Names of values that training does not change.

        A moving average needs them bit for bit.
        """
        return frozenset()

    def sparsify(self) -> None:
        """Give the model experts, after `dense_updates` or to load sparse weights."""

    def expect_weights(self) -> None:
        """Raise a `UserError` if the model needs another's weights.

        It is called before an epoch.
        """

    def export_source(self, folder: str) -> Path | None:
        """Write a source file beside the best checkpoint, or return None."""
        return None


def training_task(task: Any) -> TrainingTask:
    """Return a task with hooks: itself, or for fairseq's own tasks one without effect."""
    return task if isinstance(task, TrainingTask) else TrainingTask()


def training_model(model: Any) -> TrainingModel:
    """Return a model with hooks.

    It is the model itself, or for fairseq's own models one without effect.
    """
    return model if isinstance(model, TrainingModel) else TrainingModel()
