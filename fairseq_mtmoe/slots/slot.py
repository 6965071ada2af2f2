"""The slot of a feed-forward layer, its contents, and the context of a pass."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import LongTensor, Tensor, nn

from fairseq_mtmoe.conditioning import Tasks
from fairseq_mtmoe.moe.mixture import AdapterMixture, MixtureGate, layer_similarity
from fairseq_mtmoe.moe.parallel.token_shuffle import TokenCounts

SPARSITY = "task_sparsity"  # key of the loss in a model's additional outputs


class SlotBlock(nn.Module, ABC):
    """The interface of a block, of any backbone, to its slot.

    Modules in a slot are the block's attributes, by their names in checkpoints: `fc1` and `fc2`,
    the feed-forward layer that the block was built with; `moe`, which replaces them; or `mixture`
    beside them.
    """

    slot: Slot
    fc1: nn.Linear
    fc2: nn.Linear
    activation_fn: Callable[[Tensor], Tensor]
    activation_dropout_module: Any  # a dropout of probability `p`
    mixture: AdapterMixture  # of a block with adapters

    @abstractmethod
    def inner(self, branch_input: Tensor) -> Tensor:
        """Return the feed-forward layer's inner activations, (L, B, H) to (L, B, F)."""

    def dense_branch(self, branch_input: Tensor) -> Tensor:
        """Return the output of the block's own feed-forward layer, (L, B, H) to (L, B, H)."""
        output: Tensor = self.fc2(self.inner(branch_input))
        return output


class Slot(Protocol):
    """A function in the place of a block's feed-forward layer."""

    def __call__(
        self, block: SlotBlock, hidden: Tensor, branch_input: Tensor, context: BatchContext
    ) -> Tensor:
        """Return the output before dropout and residual connection, (L, B, H).

        hidden: the residual stream; branch_input: the stream or its norm.
        """


class SlotPlan(Protocol):
    """A plan of a slot's content."""

    def fill(self, block: SlotBlock) -> None:
        """Fill a block's slot when the block is built."""


def dense(block: SlotBlock, hidden: Tensor, branch_input: Tensor, context: BatchContext) -> Tensor:
    """Compute the dense feed-forward layer: the slot that all blocks start with."""
    return block.dense_branch(branch_input)


@dataclass(frozen=True)
class GateInput:
    """The inputs of adapter gates in a pass, and the values that blocks store.

    Created for each pass, or once per text in incremental decoding, so that gates run once.

    Attributes:
        summary: the input of all gates, (d,) or (B, d), or a function of a feed-forward layer's
            input, (L, B, H).
        wants_similarities: whether blocks store the activations for the task sparsity loss.
        sentences: the sentence of each column of the stream: hypotheses (R,) or tokens (1, T, H);
            None: column b is b.
        weights: source weights by block, in order, (K,) or (B, K), float32.
        narrow: adapters' inner activations by block, stored until similarities are measured.
        similarities: `layer_similarity` by block, a scalar: how similar sources' outputs are to the
            block's output.
    """

    summary: Tensor | Callable[[Tensor], Tensor]
    wants_similarities: bool = False
    sentences: Tensor | None = None
    weights: dict[nn.Module, Tensor] = field(default_factory=dict)
    narrow: dict[nn.Module, Tensor] = field(default_factory=dict)
    similarities: dict[nn.Module, Tensor] = field(default_factory=dict)

    def weights_of(self, block: nn.Module, gate: MixtureGate, branch_input: Tensor) -> Tensor:
        """Return and store a block's source weights; `branch_input` is (L, B, H)."""
        if callable(self.summary):
            self.weights[block] = gate(self.summary(branch_input))
        # A recomputed block's first pass had no gradient
        elif torch.is_grad_enabled() or block not in self.weights:
            self.weights[block] = gate(self.summary)
        return self.weights[block]

    def measure(self, block: SlotBlock, output: Tensor, padding_mask: Tensor | None) -> None:
        """Store how similar sources are to a block's output, (L, B, H)."""
        assert block.mixture.adapters is not None
        cosines = block.mixture.adapters.cosines(self.narrow.pop(block), output)
        weights = self.expand_to_beam(self.weights[block])
        self.similarities[block] = layer_similarity(cosines, weights, padding_mask)

    def expand_to_beam(self, weights: Tensor) -> Tensor:
        """Return weights (K,) or (B, K) for the columns of the stream."""
        if self.sentences is None or weights.dim() == 1:
            return weights
        return weights.index_select(0, self.sentences)


@dataclass(frozen=True)
class BatchContext:
    """The context of one pass through a stack, an argument of every block.

    fairseq's activation checkpointing loses the gradients of tensors in it.
    """

    # Each sentence's task, (B,); None if the model does not take them
    task_ids: LongTensor | None = None
    padding_mask: Tensor | None = None  # True at padding, (B, L)
    # The counts of all ranks, filled in by the first layer that needs them
    token_counts: TokenCounts = field(default_factory=TokenCounts)
    tasks: Tasks | None = None  # the embeddings of all tasks in this pass, for conditional modules
    mixture: GateInput | None = None  # for gates of adapters
    prompt_length: int = 0  # number of positions of the prompt before the words


def task_sparsity_loss(passes: Iterable[GateInput]) -> Tensor:
    """Return PEMT's equation 5 over all layers of encoder and decoder, a scalar.

    The passes must have measured similarities.
    """
    return -torch.stack([value for each in passes for value in each.similarities.values()]).mean()


def takes(model: Any, name: str) -> bool:
    """Return whether the forward pass of a model, wrapped or not, has this argument."""
    return name in inspect.signature(unwrapped(model).forward).parameters


def unwrapped(model: Any) -> Any:
    """Return a model without its DDP wrappers."""
    while hasattr(model, "module"):
        model = model.module
    return model
