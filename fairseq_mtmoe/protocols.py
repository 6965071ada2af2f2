"""The hooks between rooms: what a room asks of another's objects beyond fairseq's interfaces, each a named Protocol.

Whoever calls a hook asks `isinstance` first, because fairseq's own tasks, models and datasets have none of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class RunObserver(Protocol):
    """A task that keeps a run log: what training tells it."""

    def begins(self, options: Mapping[str, Any], device: Any, model: Any) -> None:
        """A run begins, with the options that are not the defaults, on torch's device; the model has no wrapper."""

    def trained(self, update: int, figures: Mapping[str, Any]) -> None:
        """After so many updates, what fairseq's progress bars get every `--log-interval` updates: means by name."""

    def sparsified(self, update: int, num_experts: int, model: Any) -> None:
        """The model got this number of experts in each layer after this number of updates."""

    def ended(self) -> None:
        """The training is over; not where a signal ends it."""

    def expert_comm(self, update: int, updates: int, layers: Mapping[str, Mapping[str, float]]) -> None:
        """After `update` updates, `seconds` and `bytes` of each layer's exchange in the last `updates` of them."""


@runtime_checkable
class SamplesByUpdates(Protocol):
    """A task whose sampling can go by updates: it is told before each epoch how many were made."""

    num_updates: int


@runtime_checkable
class CountsUpdates(Protocol):
    """A task that counts what is trained on, and of a step that makes no update nothing."""

    def begin_step(self) -> None:
        """A step begins; the one before, if its figures were not reduced, was left out."""


@runtime_checkable
class GathersBeforeSaving(Protocol):
    """A task that saves what all processes know: they call it together, before one of them saves."""

    def gather(self) -> None:
        """Tell the other processes what they do not know, and learn what they tell."""


class Named(Protocol):
    """What has a name to be shown."""

    @property
    def name(self) -> str:
        """Shown to users, and the beginning of its figures' names."""


@runtime_checkable
class GroupsTasks(Protocol):
    """A task whose validation gives averages over sets of its tasks, such as tiers of language pairs."""

    def groups(self) -> Sequence[Named]:
        """The sets, from those with most data to those with least."""


@runtime_checkable
class NamesTasks(Protocol):
    """A task or model that tells tasks apart, by ids that index these names."""

    task_names: list[str]


@runtime_checkable
class TakesTaskIds(Protocol):
    """A model whose forward pass takes `task_ids` (B,)."""

    accepts_task_ids: bool


@runtime_checkable
class ResumesDraws(Protocol):
    """A dataset of sampled examples, whose checkpoint goes on with the same draws; used by the epoch's iterator."""

    @property
    def batch_counts(self) -> Sequence[int]:
        """How many batches each part of the epoch has, which are shuffled by themselves; none before they are made."""

    def saved_draws(self, epoch: int) -> dict[str, Any]:
        """What a checkpoint has to save to go on in this epoch, or at the beginning of the next."""

    def resume(self, state: Mapping[str, Any], has_begun: bool) -> bool:
        """Go on in a checkpoint's epoch, of which a part was seen if it `has_begun`; whether that part stays seen."""


@runtime_checkable
class BecomesSparse(Protocol):
    """A model that may train dense first: after `dense_updates` updates, or when it loads sparse weights."""

    dense_updates: int

    @property
    def is_dense(self) -> bool:
        """Whether the experts are still to come."""

    def sparsify(self) -> None:
        """Get them."""


@dataclass(frozen=True)
class TaskDescription:
    """What a task is, in a sentence.

    Attributes:
        name: of the task.
        text: the sentence.
        tokens: the sentence's, in the model's dictionary, without an end.
        is_source: whether the run trains it for others to borrow from; None where the task does not say.
        language_symbols: number of symbols at the dictionary's end that stand for languages, and not for text.
    """

    name: str
    text: str
    tokens: Sequence[int]
    is_source: bool | None = None
    language_symbols: int = 0


@runtime_checkable
class DescribesTask(Protocol):
    """A task that trains a model for one thing, and says in a sentence what that is; prompts begin with it."""

    def described(self) -> TaskDescription:
        """Called when a model is built; a `UserError` where it is for several things, or has no description."""


@runtime_checkable
class GoesOn(Protocol):
    """A task that knows what a run goes on from."""

    def checkpoint_to_go_on_from(self) -> str | None:
        """The checkpoint that a run goes on from, or begins with; None without one."""

    def options_to_go_on_with(self) -> Mapping[str, Any]:
        """The options of that checkpoint's model; none without one; a `UserError` where it cannot be read."""

    def expect_same_run(self, path: str, state: Mapping[str, Any]) -> None:
        """Refuse, by a `UserError`, a checkpoint of a run of other tasks or another backbone, where that goes on."""


@runtime_checkable
class NotesOptions(Protocol):
    """A model that, once it is built, knows options which its checkpoints are to be built with."""

    @property
    def noted_options(self) -> Mapping[str, str]:
        """Their values by their names, which the model's configuration has."""


@runtime_checkable
class MixesSources(Protocol):
    """A model that may borrow from source tasks."""

    @property
    def gates_event(self) -> tuple[str, dict[str, Any]]:
        """The run log's event of its gates' weights: its name, and what weights are of, in their order."""


@runtime_checkable
class NeedsWeights(Protocol):
    """A model that makes no sense without the weights of another, which it may get long after it was built."""

    def expect_weights(self) -> None:
        """Called before an epoch is trained; a `UserError` where it has none."""


@runtime_checkable
class ExportsSource(Protocol):
    """A model with a part that is a file beside its checkpoints: of the best one, or of the last where none is best."""

    def export_source(self, folder: str) -> Path | None:
        """Write it, completely or not at all, in one process, before such a checkpoint; None where there is none."""


class GivesEncoder(Protocol):
    """A task whose models are encoders with heads.

    Attributes:
        pretrained: the encoder that a new model begins with; None where a checkpoint's weights follow.
        begins_with_checkpoint: a new model gets a checkpoint's weights, too, before it is trained.
    """

    pretrained: Any
    begins_with_checkpoint: bool
