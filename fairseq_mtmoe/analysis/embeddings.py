"""A map of a model's task embeddings: the plane in which they lie furthest apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class TaskEmbeddingTable:
    """The task embeddings of a model.

    Attributes:
        tasks: their names.
        table_KD: the embedding of each, (K, D).
    """

    tasks: Sequence[str]
    table_KD: NDArray[np.floating]

    def plane(self) -> tuple[Matrix, tuple[float, float]]:
        """Principal components: each task's coordinates on the first two, (K, 2), and their shares of the variance.

        The sign of an axis is that with which the task furthest out on it has a positive coordinate.
        """
        centred_KD = self.table_KD.astype(np.float64) - self.table_KD.astype(np.float64).mean(axis=0)
        left_KR, lengths_R, _ = np.linalg.svd(centred_KD, full_matrices=False)
        places_KR = np.zeros((len(self.tasks), 2))
        count = min(2, len(lengths_R))
        places_KR[:, :count] = left_KR[:, :count] * lengths_R[:count]
        furthest = np.take_along_axis(places_KR, np.abs(places_KR).argmax(axis=0)[np.newaxis], axis=0)
        places_KR *= np.where(furthest < 0, -1.0, 1.0)
        variances = np.zeros(2)
        variances[:count] = lengths_R[:count] ** 2
        first, second = variances / max(float((lengths_R**2).sum()), 1e-300)
        return places_KR, (float(first), float(second))
