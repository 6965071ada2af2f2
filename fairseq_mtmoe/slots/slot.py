"""Blocks with a slot for the feed-forward layer, and the context of a pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import LongTensor, Tensor, nn

from fairseq_mtmoe.conditioning import (
    ConditionalAttentionBias,
    ConditionalBottleneck,
    Tasks,
    apply_norm,
)
from fairseq_mtmoe.moe.mixture import AdapterMixture, MixtureGate, layer_similarity
from fairseq_mtmoe.moe.parallel.token_shuffle import TokenCounts

SPARSITY = "task_sparsity"  # key of the loss in a model's additional outputs


# A function that replaces a block's feed-forward layer. It takes the block, the residual stream,
# the layer's input (the stream or its norm) and the context; it returns the branch's output,
# (L, B, H).
Slot = Callable[["Block", Tensor, Tensor, "BatchContext"], Tensor]


class Block(nn.Module):
    """A block of any backbone, whose second half is its slot.

    Dense and sparse blocks run the same code. Modules in a slot are the block's attributes, by
    their names in checkpoints: `fc1` and `fc2`, the feed-forward layer that the block was built
    with; `moe`, which replaces them; or `mixture` beside them.
    """

    slot: Slot
    mixture: AdapterMixture  # of a block with adapters
    # The backbone's own modules
    normalize_before: bool
    final_layer_norm: Any
    fc1: nn.Linear
    fc2: nn.Linear
    activation_fn: Callable[[Tensor], Tensor]
    activation_dropout_module: Any  # a dropout of probability `p`
    dropout_module: Any

    def begin_dense(self) -> None:
        """Become a dense block without conditional parts; called when it is built."""
        self.slot = dense
        # Added to the scores of self-attention
        self.attention_bias: ConditionalAttentionBias | None = None
        # Added to the block's output
        self.bottleneck: ConditionalBottleneck | None = None

    def feed_forward(self, h: Tensor, context: BatchContext) -> Tensor:
        """Compute the block's second half.

        It is `h` (L, B, H) plus the slot's branch, plus the bottleneck's, if any.
        """
        branch_input = self.before(self.final_layer_norm, h, context)
        branch = self.slot(self, h, branch_input, context)
        h = self.after(self.final_layer_norm, branch, h, context)
        if context.adapter_pass is not None and self in context.adapter_pass.narrow:
            context.adapter_pass.measure(self, h, context.padding_mask)
        if self.bottleneck is None:
            return h
        adapted: Tensor = h + self.bottleneck(h, context.tasks, context.task_ids)
        return adapted

    def before(self, norm: nn.Module, h: Tensor, context: BatchContext) -> Tensor:
        """Return a sub-layer's input for the stream `h` (L, B, H), with norms before it."""
        if not self.normalize_before:
            return h
        return self.normalize(norm, h, context)

    def after(self, norm: nn.Module, branch: Tensor, h: Tensor, context: BatchContext) -> Tensor:
        """Return the stream `h` (L, B, H) plus a branch, with norms after it."""
        h = self.join(branch, h)
        if self.normalize_before:
            return h
        return self.normalize(norm, h, context)

    def normalize(self, norm: nn.Module, x: Tensor, context: BatchContext) -> Tensor:
        """Apply one of the block's norms, conditional or not, to `x` (L, B, H)."""
        return apply_norm(norm, x, context.tasks, context.task_ids)

    def inner(self, branch_input: Tensor) -> Tensor:
        """Return the input of the second feed-forward matrix: (L, B, H) to (L, B, F)."""
        inner: Tensor = self.activation_dropout_module(self.activation_fn(self.fc1(branch_input)))
        return inner

    def join(self, branch: Tensor, h: Tensor) -> Tensor:
        """Add a branch to the residual stream, after dropout."""
        dropped: Tensor = self.dropout_module(branch)
        return h + dropped


def dense(block: Block, hidden: Tensor, branch_input: Tensor, context: BatchContext) -> Tensor:
    """Compute the block's own feed-forward layer: the slot that all blocks start with."""
    output: Tensor = block.fc2(block.inner(branch_input))
    return output


@dataclass(frozen=True)
class AdapterPass:
    """The gates' input in one pass of adapters, and values that its blocks store.

    Created for each pass, or once per text in incremental decoding, so that gates run once.

    Attributes:
        summary: the input of all gates, (d,) or (B, d), or a function of a feed-forward layer's
            input, (L, B, H).
        wants_similarities: whether blocks store the activations for the task sparsity loss.
        sentences: the sentence of each column of the stream: hypotheses (R,) or tokens (1, T, H);
            None: column b is sentence b.
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

    def measure(self, block: Block, output: Tensor, padding_mask: Tensor | None) -> None:
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
    adapter_pass: AdapterPass | None = None  # None without gates of adapters
    prompt_length: int = 0  # number of positions of the prompt before the words


def task_sparsity_loss(passes: Iterable[AdapterPass]) -> Tensor:
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
