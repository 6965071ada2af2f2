"""The slot of a block's feed-forward layer, what may stand in it, and what a forward pass tells it."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import LongTensor, Tensor, nn

from fairseq_mtmoe.conditioning import Tasks
from fairseq_mtmoe.moe.mixture import AdapterMixture, MixtureGate
from fairseq_mtmoe.moe.parallel.token_shuffle import TokenCounts

SPARSITY = "task_sparsity"  # the loss's name in what a model says beside its numbers


class SlotBlock(nn.Module, ABC):
    """What slots know of a block, of any backbone, dense or not.

    What stands in a slot is the block's own, by the names that checkpoints have: `fc1` and `fc2`, the feed-forward
    layer that the block was built with; `moe`, which takes their place; or `mixture` beside them.
    """

    slot: Slot
    fc1: nn.Linear
    fc2: nn.Linear
    activation_fn: Callable[[Tensor], Tensor]
    activation_dropout_module: Any  # a dropout of probability `p`
    mixture: AdapterMixture  # of a block with adapters

    @abstractmethod
    def inner(self, branch_input: Tensor) -> Tensor:
        """The inner activations of the block's own feed-forward layer, (L, B, H) to (L, B, F)."""

    def dense_branch(self, branch_input: Tensor) -> Tensor:
        """The block's own feed-forward layer, (L, B, H) to (L, B, H)."""
        output: Tensor = self.fc2(self.inner(branch_input))
        return output


class Slot(Protocol):
    """What stands in the place of a block's feed-forward layer."""

    def __call__(self, block: SlotBlock, hidden: Tensor, branch_input: Tensor, context: BatchContext) -> Tensor:
        """The output before dropout and residual, given the stream `hidden`, and itself or its norm, (L, B, H)."""


class SlotPlan(Protocol):
    """What is to stand in a block's slot."""

    def fill(self, block: SlotBlock) -> None:
        """Put it there, when the block is built."""


def dense(block: SlotBlock, hidden: Tensor, branch_input: Tensor, context: BatchContext) -> Tensor:
    """The slot of a dense block, which all blocks begin with."""
    return block.dense_branch(branch_input)


@dataclass(frozen=True)
class GateInput:
    """What mixtures of adapters read of a pass through a stack, and what they leave there.

    Made anew for each pass, or for each text that grows word by word: its gates are then asked once.

    Attributes:
        summary: what all gates read, (d,) or (B, d), or how to get it from what a feed-forward layer reads, (L, B, H).
        wants_similarities: whether blocks leave what the task sparsity loss is measured by.
        sentences: of each column of the stream, of hypotheses (R,) or tokens (1, T, H); None: b of column b.
        weights: what blocks leave, in order: the weights of their sources, (K,) or (B, K), float32.
        narrow: adapters' narrow activations, which blocks leave until similarities are measured.
        similarities: how like its output its sources' are, for each block: `layer_similarity`, a scalar.
    """

    summary: Tensor | Callable[[Tensor], Tensor]
    wants_similarities: bool = False
    sentences: Tensor | None = None
    weights: dict[nn.Module, Tensor] = field(default_factory=dict)
    narrow: dict[nn.Module, Tensor] = field(default_factory=dict)
    similarities: dict[nn.Module, Tensor] = field(default_factory=dict)

    def weights_of(self, block: nn.Module, gate: MixtureGate, branch_input: Tensor) -> Tensor:
        """The weights of a block's sources; its feed-forward layer reads `branch_input`, (L, B, H)."""
        if callable(self.summary):
            self.weights[block] = gate(self.summary(branch_input))
        elif torch.is_grad_enabled() or block not in self.weights:  # a block that is computed again has no gradient yet
            self.weights[block] = gate(self.summary)
        return self.weights[block]

    def expand_to_beam(self, weights: Tensor) -> Tensor:
        """Weights (K,) or (B, K) as they are of the stream's columns."""
        return weights if self.sentences is None or weights.dim() == 1 else weights.index_select(0, self.sentences)


@dataclass(frozen=True)
class BatchContext:
    """Made anew for each pass through a stack, and an argument of every block: nothing of it outlives the pass.

    fairseq's activation checkpointing loses the gradients of tensors in it.
    """

    task_ids: LongTensor | None = None  # each sentence's task, (B,); None where tasks are not told apart
    padding_mask: Tensor | None = None  # True at padding, (B, L)
    token_counts: TokenCounts = field(default_factory=TokenCounts)  # of other ranks, once a layer has asked
    tasks: Tasks | None = None  # the embeddings of all tasks in this pass, for conditional modules
    mixture: GateInput | None = None  # for gates of adapters
    prompt_length: int = 0  # how many of the first positions are no words, but a prompt of all sentences


def task_sparsity_loss(passes: Iterable[GateInput]) -> Tensor:
    """PEMT's equation 5, of all layers of the passes (of encoder and decoder), which wanted similarities: a scalar."""
    return -torch.stack([value for each in passes for value in each.similarities.values()]).mean()


def takes(model: Any, name: str) -> bool:
    """Whether a model, inside whatever wraps it for several processes, has an input of this name."""
    return name in inspect.signature(unwrapped(model).forward).parameters


def unwrapped(model: Any) -> Any:
    """A model without what wraps it for several processes."""
    while hasattr(model, "module"):
        model = model.module
    return model
