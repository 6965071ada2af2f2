"""The sampling options of a run, and the tasks' shares at each epoch.

Temperature sampling and heating are equations 1 and 2 of "Tricks for Training Sparse Translation Models".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.errors import UserError, raise_invalid


def temperature_probabilities(sizes: Sequence[float] | NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """Equation 1: `p_l = s_l^(1/T) / Σ_m s_m^(1/T)`, for sizes of any magnitude and any finite T > 0.

    Args:
        sizes: (L,) examples of each task, at least one of them above zero; a task without examples gets 0.
        temperature: 1 samples in proportion to the sizes, a higher one more evenly.

    Returns:
        (L,) probabilities that sum to 1.
    """
    assert 0 < temperature < math.inf
    values = np.asarray(sizes, dtype=np.float64)
    assert values.max() > 0 and values.min() >= 0
    with np.errstate(divide="ignore", over="ignore"):
        # Relative to the largest before the division by T: nothing overflows, and the largest becomes 1.
        weights: NDArray[np.float64] = np.exp((np.log(values) - np.log(values.max())) / temperature)
    weights /= weights.sum()
    return weights


def heated_temperature(start: float, coefficient: float, duration: int, elapsed: int) -> float:
    """Equation 2: `T_e = T_s · sqrt(1 + k·e/C)`; from C on it stays `T_s · sqrt(1 + k)`.

    Args:
        start: T_s, the temperature of the first epoch.
        coefficient: k, the conduction coefficient; 0 keeps the temperature constant.
        duration: C, at least 1: a number of epochs, or of updates.
        elapsed: e, of the same kind, counted from 0.
    """
    assert coefficient >= 0 and duration >= 1 and elapsed >= 0
    return start * math.sqrt(1.0 + coefficient * min(elapsed, duration) / duration)


UNIFORM_FIRST = "uniform-then-natural"
UNCERTAINTY = "uncertainty"
STEPS = 20
"""Where heating goes by updates, a longer part of an epoch than this share of C is drawn in several parts."""
METHODS = ("uniform", "temperature", "concat", "RoundRobin", UNIFORM_FIRST, UNCERTAINTY)


@dataclass(frozen=True)
class Schedule:
    """How tasks share an epoch.

    The methods are fairseq's, in which `concat` and `RoundRobin` take every example once; one that MT-TaG proposes
    (appendix A.4): all tasks alike until their gates have learned, then by size; and CA-MTL's, which draws equally many
    of each task as candidates, of which a step trains on those that the model is most uncertain of (`candidates.py`).

    Args:
        method: one of `METHODS`.
        temperature: T_s, for the method `temperature`.
        heating_coefficient: k of equation 2.
        heating_epochs: C of equation 2; None without heating, where it goes by updates, or, with `heating_updates`
            None too, while only a checkpoint knows it.
        heating_updates: C in updates, in the place of epochs: an epoch, or each part of a long one (see `step_at`), has
            the temperature of the update at which it begins.
        weights: (L,) fixed shares, instead of the method's.
        natural_from_epoch: the first epoch of `uniform-then-natural` that is drawn by size, from 2 on.

    Raises:
        UserError: an option is out of its range.
    """

    method: str = "concat"
    temperature: float = 1.5
    heating_coefficient: float = 0.0
    heating_epochs: int | None = None
    heating_updates: int | None = None
    weights: tuple[float, ...] | None = None
    natural_from_epoch: int | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise_invalid("--sampling-method", f"one of {', '.join(METHODS)}", self.method)
        if not 0 < self.temperature < math.inf:
            raise_invalid("--sampling-temperature", "a finite number above 0", self.temperature)
        if not 0 <= self.heating_coefficient < math.inf:
            raise_invalid("--heating-coefficient", "a finite number of at least 0", self.heating_coefficient)
        if self.weights is not None:
            _check_weights(self.weights)
            if self.draws_candidates:
                raise UserError(
                    f"`--sampling-weights` must not be given with `--sampling-method {UNCERTAINTY}`, where the model "
                    "decides how often each task trains: give one of the two."
                )
        if self.heating_coefficient > 0:
            self._check_heating()
        if (self.method == UNIFORM_FIRST) != (self.natural_from_epoch is not None):
            raise UserError(
                f"`--sampling-method {UNIFORM_FIRST}` and `--natural-from-epoch`, the first epoch that is drawn by "
                "size, need each other: give both or neither."
            )
        if self.natural_from_epoch is not None and self.natural_from_epoch < 2:
            raise_invalid(
                "--natural-from-epoch", "at least 2, since the epochs before are uniform", self.natural_from_epoch
            )

    def check_duration(self) -> None:
        """To be called before training: until then a checkpoint may say what C is.

        Raises:
            UserError: it heats, but in how many epochs or updates is not known.
        """
        if self.heating_coefficient > 0 and self.heating_epochs is None and self.heating_updates is None:
            raise UserError(
                "`--heating-coefficient` above 0 needs to know in how many epochs or updates to heat: "
                "give `--heating-epochs`, `--heating-updates` or `--max-epoch`."
            )

    def _check_heating(self) -> None:
        if self.heating_epochs is not None and self.heating_updates is not None:
            raise UserError("`--heating-epochs` and `--heating-updates` exclude each other: give one of them.")
        for name, duration in (("epochs", self.heating_epochs), ("updates", self.heating_updates)):
            if duration is not None and duration < 1:
                raise_invalid(f"--heating-{name}", "at least 1", duration)
        if self.draws_candidates:
            raise UserError(
                f"`--heating-coefficient` must be 0 with `--sampling-method {UNCERTAINTY}`, where the model decides "
                f"how often each task trains, but is {self.heating_coefficient} instead."
            )
        if self.weights is not None or self.method != "temperature":
            raise UserError(
                "`--heating-coefficient` above 0 heats a temperature: "
                "use `--sampling-method temperature`, without sampling weights."
            )

    @property
    def draws_candidates(self) -> bool:
        """Whether what is drawn are candidates, of which the model chooses what it trains on."""
        return self.method == UNCERTAINTY

    @property
    def takes_everything(self) -> bool:
        """Whether an epoch is simply every example once."""
        return self.weights is None and self.method in ("concat", "RoundRobin")

    @property
    def ends_natural(self) -> bool:
        """Whether the tasks' shares become their sizes', so that a pass is as long as the data."""
        return self.weights is None and self.method == UNIFORM_FIRST

    def temperature_at(self, epoch: int, update: int = 0) -> float | None:
        """The temperature of an epoch, counted from 1 as fairseq counts; None where the method has none."""
        if self.weights is not None or self.method != "temperature":
            return None
        duration, elapsed = self.heating_epochs or 1, epoch - 1
        if self.heating_updates is not None:
            duration, elapsed = self.heating_updates, update
        return heated_temperature(self.temperature, self.heating_coefficient, duration, elapsed)

    def step_at(self, update: int) -> int | None:
        """After how many updates the temperature of an update is out of date; None where it stays for an epoch."""
        if self.heating_coefficient == 0 or self.heating_updates is None or update >= self.heating_updates:
            return None
        return -(-self.heating_updates // STEPS)

    def probabilities_at(self, epoch: int, sizes: Sequence[int], update: int = 0) -> NDArray[np.float64]:
        """(L,) shares at an epoch, counted from 1, of tasks with these sizes (of all their data)."""
        temperature = self.temperature_at(epoch, update)
        if temperature is not None:
            return temperature_probabilities(sizes, temperature)
        if self.weights is not None:
            shares = np.array(self.weights, dtype=np.float64)
        elif self.method in ("uniform", UNCERTAINTY) or epoch < (self.natural_from_epoch or 0):
            shares = np.ones(len(sizes))
        else:
            shares = np.array(sizes, dtype=np.float64)
        shares /= shares.sum()
        return shares


def _check_weights(weights: tuple[float, ...]) -> None:
    if min(weights) < 0 or not 0 < sum(weights) < math.inf:
        raise_invalid("--sampling-weights", "finite numbers of at least 0, with one above 0", list(weights))
