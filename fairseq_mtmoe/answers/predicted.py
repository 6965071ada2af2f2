"""What a model predicts of a set's examples, as a validation gathers it from batches and processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Values = NDArray[np.float64]


def flattened(examples: Tensor, predictions: Tensor) -> tuple[Tensor, Tensor]:
    """The example that each predicted value of a batch is of, and these values, (V,) both.

    Args:
        examples: (E,).
        predictions: (E,), or (E, …) filled up with NaN, which is left out.
    """
    if predictions.dim() == 1:
        return examples, predictions
    is_one = ~predictions.flatten().isnan()
    return examples.repeat_interleave(predictions[:1].numel())[is_one], predictions.flatten()[is_one]


@dataclass(frozen=True)
class Predicted:
    """The predictions of E examples.

    Attributes:
        examples_E: their numbers in the set, in order.
        values_V: the predicted values, one or more for each, one example's after another's.
        starts_E: where each example's begin in them, and the last one's end, (E+1,).
    """

    examples_E: NDArray[np.int64]
    values_V: Values
    starts_E: NDArray[np.int64]

    @classmethod
    def gathered(cls, examples_V: NDArray[np.int64], values_V: Values) -> Self:
        """From values in any order of examples, those of one in their own order.

        Args:
            examples_V: the number of the example that each value is of.
            values_V: the values.
        """
        order_V = np.argsort(examples_V, kind="stable")
        examples_E, firsts_E = np.unique(examples_V[order_V], return_index=True)
        return cls(examples_E, values_V[order_V], np.append(firsts_E, len(values_V)))

    def __len__(self) -> int:
        return len(self.examples_E)

    def __iter__(self) -> Iterator[tuple[int, Values]]:
        """Each example's number, and its values."""
        for example, start, end in zip(self.examples_E.tolist(), self.starts_E, self.starts_E[1:], strict=False):
            yield example, self.values_V[start:end]
