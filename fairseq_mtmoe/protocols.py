"""The hooks between rooms: what a room asks of another's objects beyond fairseq's interfaces, each a named Protocol.

Whoever calls a hook asks `isinstance` first, because fairseq's own tasks, models and datasets have none of them.
"""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class RunObserver(Protocol):
    """A task that keeps a run log: what training tells it.

    begins: a run begins with these options that are not the defaults; the model has no wrapper.
    trained: what fairseq's progress bars get every `--log-interval` updates, means by name.
    sparsified: the model got this number of experts in each layer after this number of updates.
    ended: the training is over; not called where a signal ends it.
    expert_comm: each layer's `seconds` and `bytes` of all-to-all in the last `updates` before number `update`.
    """

    def begins(self, options: Mapping[str, Any], device: Any, model: Any) -> None: ...
    def trained(self, update: int, figures: Mapping[str, Any]) -> None: ...
    def sparsified(self, update: int, num_experts: int, model: Any) -> None: ...
    def ended(self) -> None: ...
    def expert_comm(self, update: int, updates: int, layers: Mapping[str, Mapping[str, float]]) -> None: ...


@runtime_checkable
class FollowsUpdates(Protocol):
    """A task that samples by updates and counts what they are made of.

    num_updates: how many were made, set before each epoch.
    begin_step: a step begins; the one before, if its figures were not reduced, was left out.
    gather: all processes call this together before one of them saves what all know.
    """

    num_updates: int

    def begin_step(self) -> None: ...
    def gather(self) -> None: ...


class Named(Protocol):
    """What has a name, which is shown and begins its figures' names."""

    @property
    def name(self) -> str: ...


@runtime_checkable
class GroupsTasks(Protocol):
    """A task whose validation gives averages over sets of its tasks, those with most data first."""

    def groups(self) -> Sequence[Named]: ...


@runtime_checkable
class NamesTasks(Protocol):
    """A task or model that tells tasks apart, by ids that index these names."""

    task_names: list[str]


@dataclass(frozen=True)
class TaskDescription:
    """What a task is, in a sentence.

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
    """A task that trains a model for one thing, and describes it; a `UserError` where it is for several or has none."""

    def described(self) -> TaskDescription: ...


@runtime_checkable
class ChecksGiven(Protocol):
    """A class of tasks that compares its options with what a user has `given`, values by name (UserError)."""

    def check_given(self, options: Namespace, given: Mapping[str, Any]) -> None: ...


@runtime_checkable
class GoesOn(Protocol):
    """A task that knows what a run goes on from.

    checkpoint_to_go_on_from: the checkpoint that a run goes on from, or begins with; None without one.
    options_to_go_on_with: the options of that checkpoint's model; none without one.
    expect_same_run: raise a `UserError` if the checkpoint is of a run of other tasks or another backbone.
    """

    def checkpoint_to_go_on_from(self) -> str | None: ...
    def options_to_go_on_with(self) -> Mapping[str, Any]: ...
    def expect_same_run(self, path: str, state: Mapping[str, Any]) -> None: ...


class GivesEncoder(Protocol):
    """A task whose models are encoders with heads.

    pretrained: the encoder that a new model begins with; None where a checkpoint's weights follow.
    begins_with_checkpoint: a new model gets a checkpoint's weights, too, before it is trained.
    """

    pretrained: Any
    begins_with_checkpoint: bool


@runtime_checkable
class ResumesDraws(Protocol):
    """A dataset of sampled examples, whose checkpoint goes on with the same draws.

    batch_counts: the number of batches in each part of the epoch, shuffled by itself; none before they are made.
    saved_draws: what a checkpoint saves to go on in this epoch, or at the beginning of the next.
    resume: go on in a checkpoint's epoch, in its middle if it `has_begun`; returns whether what was seen stays so.
    """

    @property
    def batch_counts(self) -> Sequence[int]: ...
    def saved_draws(self, epoch: int) -> dict[str, Any]: ...
    def resume(self, state: Mapping[str, Any], has_begun: bool) -> bool: ...


@runtime_checkable
class TakesTaskIds(Protocol):
    """A model whose forward pass takes `task_ids` (B,)."""

    accepts_task_ids: bool


@runtime_checkable
class BecomesSparse(Protocol):
    """A model that may train dense first: `sparsify` gives it experts, after `dense_updates` or for sparse weights."""

    dense_updates: int

    @property
    def is_dense(self) -> bool: ...
    def sparsify(self) -> None: ...


@runtime_checkable
class NotesOptions(Protocol):
    """A model that, once it is built, knows options which its checkpoints are to be built with, by their names."""

    @property
    def noted_options(self) -> Mapping[str, str]: ...


@runtime_checkable
class MixesSources(Protocol):
    """A model that may borrow from source tasks; its event is named, and says what gates' weights are of, in order."""

    @property
    def gates_event(self) -> tuple[str, dict[str, Any]]: ...


@runtime_checkable
class NeedsWeights(Protocol):
    """A model that needs weights of another; asked before an epoch, it raises a `UserError` where it has none."""

    def expect_weights(self) -> None: ...


@runtime_checkable
class ExportsSource(Protocol):
    """A model with a part that it writes beside its best checkpoint, completely or not at all; None without one."""

    def export_source(self, folder: str) -> Path | None: ...
