"""What it costs to exchange tokens with experts in other processes, and behind which computation that can hide.

Bytes are exact, given how many rows leave each process, and tests compare them with what is sent. Times are a model:
each operation waits, then bytes flow at a link's speed. `docs/concepts/communication.md` derives it. Everything is per
process and per update, seconds and bytes; letters are those of `docs/concepts/expert_layer.md`, and P is the number of
processes that hold all N experts between them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NUMBER_BYTES = 8  # numbers of tokens and of rows are int64
SCORE_BYTES = 4  # scores are float32, and the answer, an expert's number, is int32, as are numbers of rows with answers


def row_bytes(sent: float, arrived: float, width: int, element_size: int, backward: bool = True) -> float:
    """Rows (H numbers) that leave for their experts, and those that came and go back; gradients go the same ways."""
    return (2 if backward else 1) * (sent + arrived) * width * element_size


def count_bytes(num_experts: int, group_size: int, shuffles: bool) -> int:
    """Each process tells each other one how many rows each of its N/P experts gets: from itself, or from all P."""
    if shuffles:
        return (group_size - 1) * num_experts * SCORE_BYTES
    return (num_experts - num_experts // group_size) * NUMBER_BYTES


def shuffle_bytes(sent: float, arrived: float, num_experts: int) -> float:
    """Scores of tokens, padding included, that others assign, and answers for theirs; forward alone."""
    return (sent * (num_experts + 1) + arrived) * SCORE_BYTES


def gather_bytes(group_size: int, stacks: int = 1) -> int:
    """Each process tells the others how many tokens it has in each stack: once for a model that shuffles."""
    return stacks * (group_size - 1) * NUMBER_BYTES


def num_operations(shuffles: bool, backward: bool = True) -> int:
    """Collective operations of one expert layer, without the model's one gathering."""
    return 3 + (2 if backward else 0) + (1 if shuffles else 0)


@dataclass(frozen=True)
class Machine:
    """Processes of which `node_size` share a machine.

    `flops` are what products of matrices reach per second; `inside` and `between` the bytes per second of an all-to-all
    from a process into its own machine, and out of it; an operation without bytes takes `latency` seconds, and
    `peer_latency` more for each other process.
    """

    flops: float
    node_size: int
    inside: float
    between: float
    latency: float
    peer_latency: float = 0.0

    def waits(self, group_size: int, operations: int) -> float:
        """Seconds of operations without bytes."""
        return operations * (self.latency + (group_size - 1) * self.peer_latency) if group_size > 1 else 0.0

    def all_to_all_seconds(self, num_bytes: float, group_size: int, operations: int = 1) -> float:
        """Time in which equal parts of `num_bytes` in all go to P - 1 processes, by both kinds of links at once."""
        if group_size == 1:
            return 0.0
        outside = max(0, group_size - self.node_size) / (group_size - 1)
        flow = max(num_bytes * (1 - outside) / self.inside, num_bytes * outside / self.between)
        return self.waits(group_size, operations) + flow

    def all_reduce_seconds(self, num_bytes: float, group_size: int, operations: int, same_node: bool) -> float:
        """Time of averaging tensors of so many bytes in all in a ring: nearly each byte leaves each process twice."""
        flow = 2 * num_bytes * (group_size - 1) / group_size / (self.inside if same_node else self.between)
        return self.waits(group_size, operations) + flow


@dataclass(frozen=True)
class Transformer:
    """An encoder-decoder with `layers` blocks in either stack and experts in `expert_layers` of both together.

    `inner` is the width F of experts and dense blocks alike, `length` the words of a sentence.
    """

    width: int
    inner: int
    layers: int
    expert_layers: int
    num_experts: int
    vocabulary: int
    length: int = 30

    def expert_flops(self, tokens: float) -> float:
        """One expert layer, forward and backward: two products with H·F weights per token, thrice."""
        return 3 * tokens * 4 * self.width * self.inner

    def flops(self, tokens: float) -> float:
        """The whole model, forward and backward, for as many source as target tokens (`tokens` of either)."""
        attention = 8 * self.width * self.width + 4 * self.length * self.width
        block = 3 * attention + 8 * self.width * self.inner  # of the encoder and the decoder together
        return 3 * tokens * (self.layers * block + 2 * self.width * self.vocabulary)


@dataclass(frozen=True)
class Prediction:
    """One update of one process, in which P = `group_size`.

    `exchange` seconds send `num_bytes`; `waits` of them do not depend on how many tokens there are. The others are
    seconds of averaging the experts' gradients over those who hold the same ones, and of computing.
    """

    group_size: int
    num_bytes: float
    exchange: float
    waits: float
    averaging: float
    experts: float
    compute: float

    @property
    def share(self) -> float:
        """The exchange's share of an update in which nothing is done at the same time."""
        return self.exchange / (self.exchange + self.averaging + self.compute)

    @property
    def hides(self) -> bool:
        """Whether the exchange could be over when the experts are, if both worked at the same time."""
        return self.exchange <= self.experts


def predict(
    model: Transformer, machine: Machine, world_size: int, tokens: float, element_size: int = 2, shuffles: bool = True
) -> Prediction:
    """An update with `tokens` source and as many target tokens in each of W processes, evenly routed, no padding."""
    size = math.gcd(model.num_experts, world_size)
    num_bytes, waits, averaging = 0.0, 0.0, 0.0
    if size > 1:  # else experts are averaged with all other parameters
        elsewhere = tokens * (1 - 1 / size)
        layer = row_bytes(elsewhere, elsewhere, model.width, element_size)
        layer += count_bytes(model.num_experts, size, shuffles)
        layer += shuffle_bytes(elsewhere, elsewhere, model.num_experts) if shuffles else 0
        num_bytes = model.expert_layers * layer + (gather_bytes(size, stacks=2) if shuffles else 0)
        waits = machine.waits(size, model.expert_layers * num_operations(shuffles) + shuffles)
        numbers = 2 * model.width * model.inner + model.inner + model.width  # two matrices, two biases
        averaging = machine.all_reduce_seconds(
            model.expert_layers * (model.num_experts // size) * numbers * element_size,
            world_size // size, 4 * model.expert_layers, world_size <= machine.node_size,
        )  # fmt: skip
    exchange = waits + machine.all_to_all_seconds(num_bytes, size, 0)
    experts = model.expert_layers * model.expert_flops(tokens) / machine.flops
    return Prediction(size, num_bytes, exchange, waits, averaging, experts, model.flops(tokens) / machine.flops)


def bandwidth_to_hide(inner: int, flops: float, group_size: int, element_size: int = 2, extra: float = 0.0) -> float:
    """Bytes per second from which on rows travel no longer than their experts compute, whatever T and H.

    `extra` is what else travels, as a share of the rows' bytes (`shuffle_share`).
    """
    return element_size * flops * (1 - 1 / group_size) * (1 + extra) / (3 * inner)


def shuffle_share(num_experts: int, width: int, element_size: int = 2) -> float:
    """Bytes of shuffling as a share of the rows' bytes: what grows with N."""
    return shuffle_bytes(1, 1, num_experts) / row_bytes(1, 1, width, element_size)


def tokens_to_hide_waits(model: Transformer, machine: Machine, world_size: int) -> float:
    """Tokens per process from which on experts compute longer than operations wait, bytes aside."""
    waits = predict(model, machine, world_size, 0).waits
    return waits * machine.flops / (model.expert_layers * model.expert_flops(1))


def bandwidth_for_share(
    model: Transformer, machine: Machine, world_size: int, tokens: int, share: float = 0.1
) -> float:
    """Bytes per second out of each process at which the exchange is this share of an update, averaging aside.

    Infinite where the waits alone are more.
    """
    found = predict(model, machine, world_size, tokens)
    left = share / (1 - share) * found.compute - found.waits
    return found.num_bytes / left if left > 0 else math.inf


def fit_link(num_bytes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Latency (seconds) and speed (bytes per second) of the line nearest to measured times, by relative error."""
    slope, latency = map(float, np.polyfit(num_bytes, seconds, deg=1, w=[1 / second for second in seconds]))
    return max(0.0, latency), (1 / slope if slope > 0 else math.inf)
