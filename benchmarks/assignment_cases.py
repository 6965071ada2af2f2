"""What `bench_assignment.py` needs of others: scores of three kinds, libbase with a time limit, and scipy."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from assignment_scores import random_scores
from real_scores import RealScores
from torch import Tensor

KINDS = ("isotropic", "skewed", "real")
START_LIMIT = 120  # seconds, until fairseq is imported


@dataclass(frozen=True)
class Case:
    """Score matrices of one kind and size; of real ones, those of consecutive training steps."""

    kind: str
    num_tokens: int
    num_experts: int
    scores: list[Tensor]

    def __str__(self) -> str:
        return f"{self.kind}, {self.num_tokens} × {self.num_experts}"


def cases(tokens: Sequence[int], experts: Sequence[int], batches: int) -> Iterator[Case]:
    """All kinds and sizes, with so many matrices of each."""
    for num_experts in experts:
        trained = RealScores(num_experts)
        for num_tokens in tokens:
            for kind in ("isotropic", "skewed"):
                scores = [random_scores(kind, num_tokens, num_experts) for _ in range(batches)]
                yield Case(kind, num_tokens, num_experts, scores)
            yield Case("real", num_tokens, num_experts, list(trained.scores(num_tokens, batches)))


class Libbase:
    """fairseq's assignment in a process of its own, which can be stopped: on some scores it never ends.

    Args:
        limit: seconds after which it counts as endless.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._process: multiprocessing.process.BaseProcess | None = None

    def ends(self, scores_TN: Tensor) -> bool:
        """Whether it finds an assignment of these scores within the limit."""
        if self._process is None:
            self._start()
        self._connection.send(scores_TN.numpy())
        if self._connection.poll(self.limit):
            self._connection.recv()
            return True
        self.close()
        return False

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._connection, there = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(there,), daemon=True)
        self._process.start()
        if not self._connection.poll(START_LIMIT):
            raise RuntimeError("fairseq's libbase does not start; is fairseq installed with its extensions?")
        self._connection.recv()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def _serve(connection: Connection[Any, Any]) -> None:
    assign = libbase_assignment()
    connection.send("ready")
    while True:
        assign(torch.from_numpy(connection.recv()))
        connection.send("done")


def libbase_assignment() -> Callable[[Tensor], Tensor]:
    """fairseq's function: from scores (T, N) to tokens, (T,), those of one expert after the other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fairseq's own, of what it imports
        from fairseq import libbase
    return libbase.balanced_assignment  # type: ignore[no-any-return]


def experts_of(token_T: Tensor, num_experts: int) -> Tensor:
    """libbase's answer as we give ours: the expert of each token, (T,)."""
    expert_T = torch.empty_like(token_T)
    expert_T[token_T] = torch.arange(len(token_T)) // (len(token_T) // num_experts)
    return expert_T


def scipy_assignment(scores_TN: Tensor) -> Tensor:
    """The optimum by scipy, where N divides T: every expert's column comes T/N times."""
    from scipy.optimize import linear_sum_assignment

    share = scores_TN.shape[0] // scores_TN.shape[1]
    _, column_T = linear_sum_assignment(scores_TN.double().repeat_interleave(share, dim=1).numpy(), maximize=True)
    return torch.from_numpy(column_T) // share
