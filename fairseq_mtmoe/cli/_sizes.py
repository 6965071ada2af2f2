"""Model sizes of `mtmoe suggest`, and the updates that time and data allow."""

from __future__ import annotations

import math
from dataclasses import dataclass

LEAST_PASSES = 5  # with fewer passes over the data a smaller model learns more in the same time
VALIDATIONS = 10  # of a run
LARGEST_EPOCH = 1_000_000  # sentence pairs, which are drawn at once
FORWARD = 0.5  # of the time of as many sentences in training; 0.40 to 0.55 in three runs
TRANSLATION = (
    0.5  # the same for greedy translation; 0.4 in a run on a CPU, more while its model was bad
)
MOST_TRANSLATION = 0.2  # of `hours`, for translations in validations
WARMUP = 0.15  # of the updates, and at most 4,000


@dataclass(frozen=True)
class Size:
    """A translator's size, and its training's batch, rate and number of passes.

    Attributes:
        pairs: sentence pairs of training from which on it is the first choice.
        reason: where the rate comes from.
    """

    pairs: int
    layers: int
    width: int
    inner: int
    heads: int
    dropout: float
    lr: str
    max_tokens: int
    passes: int
    reason: str


SIZES = (
    Size(
        0, 3, 128, 256, 4, 0.3, "4e-3", 3000, 40, "the best of 2e-3, 4e-3 and 7e-3 in 14 languages"
    ),
    Size(
        30_000,
        3,
        192,
        384,
        4,
        0.2,
        "3e-3",
        3000,
        30,
        "the best of 1.5e-3, 3e-3 and 5e-3 in captions",
    ),
    Size(
        200_000,
        6,
        256,
        1024,
        4,
        0.2,
        "1.5e-3",
        4096,
        20,
        "between those of the sizes beside it; not swept",
    ),
    Size(1_000_000, 6, 512, 2048, 8, 0.1, "7e-4", 8192, 10, "the paper's; not swept here"),
)


def first_choice(pairs: int) -> int:
    """Return the number in `SIZES` of the largest model for this many sentence pairs."""
    return max(number for number, size in enumerate(SIZES) if pairs >= size.pairs)


@dataclass(frozen=True)
class Trial:
    """The measurements of a trial of some updates.

    Attributes:
        seconds: of an update.
        sentences: of an update, over all processes.
        memory: GiB of the process.
        gpu_left: GiB of a GPU that stay free.
    """

    seconds: float
    sentences: float
    memory: float
    gpu_left: float | None = None


@dataclass(frozen=True)
class Plan:
    """How long to train.

    Attributes:
        epoch: sentence pairs of an epoch, at most a pass.
        every: epochs between two validations, each of which writes a checkpoint.
        hours: of training and validation.
        is_scored: whether validations translate.
    """

    updates: int
    epoch: int
    every: int
    passes: float
    hours: float
    is_scored: bool = True

    @property
    def warmup(self) -> int:
        """Updates in which the rate rises."""
        return max(1, min(4000, round(self.updates * WARMUP)))


def plan(size: Size, trial: Trial, pairs: int, held_out: int, hours: float | None) -> Plan:
    """Return the plan of the updates that `size.passes` need, or fewer if `hours` end.

    Validations translate if this takes at most `MOST_TRANSLATION` of the hours.

    Args:
        pairs: sentence pairs of training.
        held_out: sentence pairs of validation.
    """
    updates = size.passes * pairs / trial.sentences
    is_scored = True
    validating = validation_seconds(trial, held_out, is_scored)
    if hours is not None:
        translating = validating - validation_seconds(trial, held_out, False)
        is_scored = translating <= MOST_TRANSLATION * hours * 3600
        validating = validation_seconds(trial, held_out, is_scored)
        updates = min(updates, (hours * 3600 - validating) / trial.seconds)
    whole = max(VALIDATIONS, int(updates))
    seconds = whole * trial.seconds + validating
    between = whole * trial.sentences / VALIDATIONS
    every = math.ceil(between / min(pairs, LARGEST_EPOCH))
    passes = whole * trial.sentences / pairs
    return Plan(whole, math.ceil(between / every), every, passes, seconds / 3600, is_scored)


def validation_seconds(trial: Trial, held_out: int, is_scored: bool) -> float:
    """Return the seconds of a run's validations, with translations if they are scored."""
    share = FORWARD + TRANSLATION if is_scored else FORWARD
    return VALIDATIONS * share * held_out / trial.sentences * trial.seconds


def least_hours(trial: Trial, pairs: int, held_out: int) -> float:
    """Return hours for `LEAST_PASSES` passes with validations, rounded up to tenths."""
    training = LEAST_PASSES * pairs / trial.sentences * trial.seconds
    return math.ceil((training + validation_seconds(trial, held_out, True)) / 360) / 10
