"""The sampling options of a run, the tasks' shares and the size of each epoch.

Temperature sampling and heating are equations 1 and 2 of "Tricks for Training Sparse Translation
Models".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.core.errors import UserError, flag, raise_invalid
from fairseq_mtmoe.core.typed import Rule, at_least, fault, mapping_of, one_of

UNIFORM_FIRST = "uniform-then-natural"
UNCERTAINTY = "uncertainty"
METHODS = ("uniform", "temperature", "concat", "RoundRobin", UNIFORM_FIRST, UNCERTAINTY)
STEPS = 20  # if heating counts updates, a part of an epoch has at most C / STEPS of them
_MAX_SCALE_UP = 1.5  # fairseq's limit of an epoch's size, relative to the data


def temperature_probabilities(
    sizes: Sequence[float] | NDArray[np.float64], temperature: float
) -> NDArray[np.float64]:
    """Return the tasks' shares (L,) by equation 1, for any sizes and T.

    They are `p_l = s_l^(1/T) / Σ_m s_m^(1/T)`; empty tasks get 0.
    """
    values = np.asarray(sizes, dtype=np.float64)
    with np.errstate(divide="ignore", over="ignore"):
        # Relative to the largest, so that nothing overflows.
        weights: NDArray[np.float64] = np.exp((np.log(values) - np.log(values.max())) / temperature)
    weights /= weights.sum()
    return weights


def apportion(total: int, probabilities: NDArray[np.float64], offset: float) -> NDArray[np.int64]:
    """Split `total` into integers (L,) with these shares.

    This is systematic sampling with one random number, `offset`. Each count is `total · p`
    rounded up or down, and its expectation over a uniform `offset` in [0, 1) is `total · p`.
    """
    cumulated = np.cumsum(probabilities)
    bounds = np.floor(total * (cumulated / cumulated[-1]) + offset).astype(np.int64)
    # In floating point `total + offset` can round up to the next integer.
    bounds = np.minimum(bounds, total)
    return np.diff(bounds, prepend=0)


Positive = Annotated[float, Rule("a finite number above 0", lambda value: 0 < value < math.inf)]
NonNegative = Annotated[
    float, Rule("a finite number of at least 0", lambda value: 0 <= value < math.inf)
]
Count = Annotated[int, at_least(1)]
_SHARES = Rule(
    "finite numbers of at least 0, with one above 0",
    lambda shares: min(shares) >= 0 and 0 < sum(shares) < math.inf,
)
Weights = Annotated[tuple[float, ...], _SHARES]


@dataclass(frozen=True)
class Schedule:
    """The sampling options: the tasks' shares of an epoch and its size.

    They may change when a run is resumed.

    Methods: fairseq's, of which `concat` and `RoundRobin` take every example once; MT-TaG's
    (appendix A.4), uniform until the gates have learned, then by size; CA-MTL's, equally many
    candidates per task (`candidates.py`).

    Args (UserError: a value is out of range):
        heating_coefficient, heating_epochs: k and C of equation 2; C is None while only a
            checkpoint knows it.
        heating_updates: C in updates; an epoch, or a part of a long one, has the temperature of
            its first update.
        natural_from_epoch: the first epoch of `uniform-then-natural` that is drawn by size.
        sampling_weights: (L,) fixed shares, instead of the method's.
        virtual_epoch_size: examples in an epoch, at most a pass; None: a pass over the current
            shards.
        virtual_data_size: examples in a pass; None: fairseq's rule, or for candidates the size of
            the largest task.
    """

    sampling_method: Annotated[str, one_of(METHODS)] = "concat"
    sampling_temperature: Positive = 1.5
    heating_coefficient: NonNegative = 0.0
    heating_epochs: Count | None = None
    heating_updates: Count | None = None
    natural_from_epoch: Annotated[int, at_least(2)] | None = None
    sampling_weights: Weights | None = None
    virtual_epoch_size: Count | None = None
    virtual_data_size: Count | None = None

    def __post_init__(self) -> None:
        wrong = fault(asdict(self), mapping_of(Schedule))
        if wrong is not None:
            name = wrong.path.split(".")[0]
            raise_invalid(flag(name), wrong.rule, getattr(self, name))
        method = self.sampling_method
        heats = self.heating_coefficient > 0
        has_weights = self.sampling_weights is not None
        for is_wrong, sentence in (
            (
                has_weights and self.draws_candidates,
                "`--sampling-weights` must not be given with `--sampling-method "
                f"{UNCERTAINTY}`, which chooses examples by the model's uncertainty.",
            ),
            (
                heats and None not in (self.heating_epochs, self.heating_updates),
                "`--heating-epochs` and `--heating-updates` exclude each other: give only one.",
            ),
            (
                heats and (has_weights or method != "temperature"),
                "`--heating-coefficient` above 0 needs `--sampling-method temperature` without "
                "sampling weights.",
            ),
            (
                (method == UNIFORM_FIRST) != (self.natural_from_epoch is not None),
                f"`--sampling-method {UNIFORM_FIRST}` and `--natural-from-epoch`, the first epoch "
                "drawn by size, need each other: give both or neither.",
            ),
        ):
            if is_wrong:
                raise UserError(sentence)

    def check_duration(self) -> None:
        """Raise a `UserError` if heating has no duration from an option or the checkpoint."""
        if (
            self.heating_coefficient > 0
            and self.heating_epochs is None
            and self.heating_updates is None
        ):
            durations = "`--heating-epochs`, `--heating-updates` or `--max-epoch`"
            raise UserError(
                f"`--heating-coefficient` above 0 requires {durations}, the duration of heating."
            )

    @property
    def draws_candidates(self) -> bool:
        """Return whether the model chooses among the drawn examples."""
        return self.sampling_method == UNCERTAINTY

    @property
    def takes_everything(self) -> bool:
        """Return whether an epoch takes every example once."""
        return self.sampling_weights is None and self.sampling_method in ("concat", "RoundRobin")

    def temperature_at(self, epoch: int, update: int = 0) -> float | None:
        """Return the temperature at an epoch, counted from 1; None if the method has none.

        Equation 2: `T_e = T_s · sqrt(1 + k·e/C)`, constant from C (epochs or updates) on.
        """
        if self.sampling_weights is not None or self.sampling_method != "temperature":
            return None
        if self.heating_updates is not None:
            duration = self.heating_updates
            elapsed = update
        else:
            duration = self.heating_epochs or 1
            elapsed = epoch - 1
        heat = self.heating_coefficient * min(elapsed, duration) / duration
        return self.sampling_temperature * math.sqrt(1.0 + heat)

    def step_at(self, update: int) -> int | None:
        """Return the number of updates that may share a temperature.

        None: a whole epoch may.
        """
        if (
            self.heating_coefficient == 0
            or self.heating_updates is None
            or update >= self.heating_updates
        ):
            return None
        return -(-self.heating_updates // STEPS)

    def probabilities_at(
        self, epoch: int, sizes: Sequence[int], update: int = 0
    ) -> NDArray[np.float64]:
        """Return the tasks' shares (L,) at an epoch, by the sizes of all their data."""
        temperature = self.temperature_at(epoch, update)
        if temperature is not None:
            return temperature_probabilities(sizes, temperature)
        is_uniform = self.sampling_method in ("uniform", UNCERTAINTY)
        if self.sampling_weights is not None:
            shares = np.array(self.sampling_weights, dtype=np.float64)
        elif is_uniform or epoch < (self.natural_from_epoch or 0):
            shares = np.ones(len(sizes))
        else:
            shares = np.array(sizes, dtype=np.float64)
        shares /= shares.sum()
        return shares

    def pass_size(self, sizes: Sequence[int], whole_sizes: Sequence[int]) -> int:
        """Return the number of examples in a pass over shards of these `sizes`.

        whole_sizes: those of all shards.
        """
        if self.takes_everything:
            return sum(sizes)
        if self.virtual_data_size is not None:
            return self.virtual_data_size
        if self.sampling_weights is None and self.sampling_method == UNIFORM_FIRST:
            return sum(sizes)  # the shares become those of the sizes
        if self.draws_candidates:
            return max(sizes)
        # As in fairseq, a pass sees the largest task once at the first epoch's shares; later
        # shares keep this size.
        largest = int(np.argmax(sizes))
        share = max(self.probabilities_at(1, whole_sizes)[largest], 1e-300)
        return max(1, int(min(sizes[largest] / share, _MAX_SCALE_UP * sum(sizes))))

    def epoch_size(self, sizes: Sequence[int], whole_sizes: Sequence[int]) -> int:
        """Return the number of examples in an epoch of these shards."""
        pass_size = self.pass_size(sizes, whole_sizes)
        return min(self.virtual_epoch_size or pass_size, pass_size)

    def following(self, before: Schedule, given_duration: bool) -> Schedule:
        """Return this schedule for a run resumed from `before`.

        Its C is kept unless a duration is given.
        """
        epochs = self.heating_epochs
        updates = self.heating_updates
        if not given_duration and self.heating_coefficient > 0 < before.heating_coefficient:
            epochs = before.heating_epochs
            updates = before.heating_updates
        return replace(self, heating_epochs=epochs, heating_updates=updates)
