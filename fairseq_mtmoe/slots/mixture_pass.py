"""What mixtures of adapters read of a pass through a stack, and what they leave there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fairseq_mtmoe.moe.mixture import MixtureGate

SPARSITY = "task_sparsity"  # the loss's name in what a model says beside its numbers


@dataclass(frozen=True)
class MixturePass:
    """Made anew for each pass through a stack, as the `BatchContext` that holds it.

    While a text grows word by word nothing that it holds changes, so one may go with a text from word to word: its
    gates are then asked once. Gradients of `summary` and `similarities` would be lost under fairseq's activation
    checkpointing, as those of all tensors of a context.

    Attributes:
        summary: what all gates read, (d,), or (B, d) with a summary for each sentence; or how to get it from what a
            feed-forward layer reads, (L, B, H) to (B, d).
        wants_similarities: whether blocks leave what the task sparsity loss is measured by.
        sentences: whose summary is that of each column of the stream, where these are no sentences: of several
            hypotheses for each (R,), of the tokens of a stream (1, T, H); None: column b is of sentence b.
        weights: what blocks leave, in order: the weights of their sources, (K,) or (B, K), float32.
        narrow: what they leave if similarities are wanted, until these are measured: adapters' narrow activations.
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

    def of_columns(self, weights: Tensor) -> Tensor:
        """Weights (K,) or (B, K) as they are of the stream's columns."""
        return weights if self.sentences is None or weights.dim() == 1 else weights.index_select(0, self.sentences)


def task_sparsity_loss(passes: Iterable[MixturePass]) -> Tensor:
    """PEMT's equation 5, of all layers of the passes (of encoder and decoder), which wanted similarities: a scalar."""
    return -torch.stack([value for each in passes for value in each.similarities.values()]).mean()
