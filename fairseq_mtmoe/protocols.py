"""The hooks between packages beyond fairseq's interfaces, each a named Protocol.

Callers check `isinstance` first, because fairseq's own tasks, models and datasets have no hooks.
"""

from argparse import Namespace
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class RunObserver(Protocol):
    """A task that keeps a run log, which the trainer notifies.

    Methods:
        begins: a run begins; `options` are those that differ from the defaults, the model has no wrapper.
        trained: `figures` are the means that fairseq's progress bars show every `--log-interval` updates.
        sparsified: the model got this number of experts per layer after this number of updates.
        ended: the training is over; not called if a signal ends it.
        expert_comm: each layer's `seconds` and `bytes` of all-to-all in the last `updates` updates before `update`.
    """

    def begins(self, options: Mapping[str, Any], device: Any, model: Any) -> None: ...
    def trained(self, update: int, figures: Mapping[str, Any]) -> None: ...
    def sparsified(self, update: int, num_experts: int, model: Any) -> None: ...
    def ended(self) -> None: ...
    def expert_comm(self, update: int, updates: int, layers: Mapping[str, Mapping[str, float]]) -> None: ...


@runtime_checkable
class FollowsUpdates(Protocol):
    """A task that samples by updates and counts their examples.

    num_updates: number of updates so far, set before each epoch.
    begin_step: a step begins; if the last step's figures were not reduced, it made no update.
    gather: a collective call before a rank saves the state of all ranks.
    """

    num_updates: int

    def begin_step(self) -> None: ...
    def gather(self) -> None: ...


class Named(Protocol):
    """An object with a name, the prefix of its figures' names."""

    @property
    def name(self) -> str: ...


@runtime_checkable
class GroupsTasks(Protocol):
    """A task whose validation averages groups of its tasks, the largest data first."""

    def groups(self) -> Sequence[Named]: ...


@runtime_checkable
class NamesTasks(Protocol):
    """A task or model whose task ids index these names."""

    task_names: list[str]


@runtime_checkable
class ChecksVocabulary(Protocol):
    """A task that compares its dictionaries with a checkpoint's `task_state` (UserError: others)."""

    def check_vocabulary(self, state: Mapping[str, Any] | None, path: str) -> None: ...


@dataclass(frozen=True)
class TaskDescription:
    """A task's description in a sentence.

    tokens: the sentence in the model's dictionary, without an end token.
    is_source: whether other tasks will borrow from this run; None if unknown.
    language_symbols: number of language symbols at the end of the dictionary.
    """

    name: str
    text: str
    tokens: Sequence[int]
    is_source: bool | None = None
    language_symbols: int = 0


@runtime_checkable
class DescribesTask(Protocol):
    """A task that can describe its single task (UserError: several)."""

    def described(self) -> TaskDescription: ...


@runtime_checkable
class ChecksGiven(Protocol):
    """A task class that checks its options against those given (UserError)."""

    def check_given(self, options: Namespace, given: Mapping[str, Any]) -> None: ...


@runtime_checkable
class GoesOn(Protocol):
    """A task that knows the checkpoint from which a run continues.

    checkpoint_to_go_on_from: the checkpoint from which a run continues or starts, or None.
    options_to_go_on_with: the options of that checkpoint's model; empty without a checkpoint.
    take_up: take over what a run keeps of the checkpoint that it begins with; if it `goes_on` with the optimizer's
        state, raise a `UserError` if the checkpoint's run had other tasks or another backbone.
    """

    def checkpoint_to_go_on_from(self) -> str | None: ...
    def options_to_go_on_with(self) -> Mapping[str, Any]: ...
    def take_up(self, path: str, state: Mapping[str, Any], goes_on: bool) -> None: ...


@runtime_checkable
class LabelsHeads(Protocol):
    """A task whose model has an output for each label, or writes a text for it.

    head_labels: the labels in the order of the head's outputs, by task; or with their texts.
    """

    head_labels: Mapping[str, Sequence[str]]


class GivesEncoder(Protocol):
    """A task whose models are encoders with heads.

    pretrained: the encoder that a new model starts from; None if a checkpoint's weights follow.
    begins_with_checkpoint: whether a new model also gets a checkpoint's weights before training.
    """

    pretrained: Any
    begins_with_checkpoint: bool


@runtime_checkable
class ResumesDraws(Protocol):
    """A dataset of sampled examples, which a resumed run draws in the same way.

    Methods:
        batch_counts: number of batches in each separately shuffled part of the epoch; empty before they are made.
        saved_draws: a checkpoint's state to resume in this epoch, or at the beginning of the next.
        resume: resume a checkpoint's epoch, in its middle if it `has_begun`; return whether the part already trained
            on is still the same.
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
    """A model that may train dense first.

    sparsify: give it experts, after `dense_updates` or to load sparse weights.
    """

    dense_updates: int

    @property
    def is_dense(self) -> bool: ...
    def sparsify(self) -> None: ...


@runtime_checkable
class NotesOptions(Protocol):
    """A model that determines options while it is built; its checkpoints store them."""

    @property
    def noted_options(self) -> Mapping[str, str]: ...


@runtime_checkable
class MixesSources(Protocol):
    """A model that may borrow from source tasks.

    gates_event: name of its event in the run log, and fields that name the sources in the order of gate weights.
    """

    @property
    def gates_event(self) -> tuple[str, dict[str, Any]]: ...


@runtime_checkable
class NeedsWeights(Protocol):
    """A model that needs another's weights; called before an epoch (UserError: none)."""

    def expect_weights(self) -> None: ...


@runtime_checkable
class HasConstants(Protocol):
    """A model that needs some values of its state bit for bit, also in a moving average.

    constants: their names; training does not change them.
    """

    @property
    def constants(self) -> Set[str]: ...


@runtime_checkable
class ExportsSource(Protocol):
    """A model that writes a source file beside its best checkpoint, or returns None."""

    def export_source(self, folder: str) -> Path | None: ...
