"""Prompts that describe tasks, and how a target's is correlated with its sources'.

PEMT, §3.1 and §3.2, equations 3 and 4. Pure torch: any backbone can have them before its tokens.

Letters, besides those of `moe/README.md`: `K` sources, `N` vectors of a source's prompt (of the longest), `P` of the
model's own prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DESCRIPTION, RANDOM = INITS = ("description", "random")
ATTENTION_DROPOUT = 0.1  # the authors' code


class Prompt(nn.Module):
    """A task's prompt, which trains.

    Args:
        length: how many vectors it has.
        width: H.
    """

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(length, width))

    def forward(self) -> Tensor:
        """(P, H)."""
        return self.weight

    @torch.no_grad()
    def begin_as_(self, tokens: Sequence[int], embeddings: Tensor, init: str) -> None:
        """Begin as a description's tokens; or at random, alike in length and in mean and deviation of the values.

        Args:
            tokens: of the description, as many as the prompt is long.
            embeddings: of all tokens, (V, H).
            init: one of `INITS`.
        """
        assert len(tokens) == len(self.weight)
        if init == DESCRIPTION:
            self.weight.copy_(embeddings[list(tokens)])
        else:
            self.weight.normal_(embeddings.float().mean().item(), embeddings.float().std().item())


class CorrelatedPrompt(Prompt):
    """A target's prompt and the frozen ones of its sources; `weight` is Q.

    Attributes:
        sources: the prompts, 0 beyond their lengths, (K, N, H).
    """

    sources: Tensor
    has_source: Tensor

    def __init__(self, length: int, width: int, source_lengths: Sequence[int]) -> None:
        super().__init__(length, width)
        longest = max(source_lengths)
        self.register_buffer("sources", torch.zeros(len(source_lengths), longest, width))
        has_source_KN = torch.arange(longest) < torch.tensor(list(source_lengths)).unsqueeze(1)
        self.register_buffer("has_source", has_source_KN, persistent=False)

    def forward(self) -> Tensor:
        """Q + Σ_k softmax(Q P_kᵀ) P_k, (P, H): equations 3 and 4, unscaled.

        It is worked out in float32: products of T5's embeddings are beyond half precision's range.
        """
        with torch.autocast(self.weight.device.type, enabled=False):
            queries_PH, sources_LH = self.weight.float(), self.sources.float().flatten(0, 1)
            scores_PKN = (queries_PH @ sources_LH.t()).unflatten(1, self.has_source.shape)
            weights_PKN = scores_PKN.masked_fill(~self.has_source, float("-inf")).softmax(2)
            weights_PKN = F.dropout(weights_PKN, ATTENTION_DROPOUT, self.training)
            return (queries_PH + weights_PKN.flatten(1) @ sources_LH).to(self.weight.dtype)

    @torch.no_grad()
    def take_sources_(self, prompts: Sequence[Tensor]) -> None:
        """Take over the sources' prompts, (N_k, H) each."""
        for kept_NH, has_source_N, prompt in zip(self.sources, self.has_source, prompts, strict=True):
            kept_NH[has_source_N] = prompt.to(kept_NH)


def prepended(prompt_PH: Tensor, x_LBH: Tensor, padding_mask_BL: Tensor) -> tuple[Tensor, Tensor]:
    """A stream and its padding with the prompt before each of its rows: (P + L, B, H) and (B, P + L)."""
    prompt_PBH = prompt_PH.to(x_LBH.dtype).unsqueeze(1).expand(-1, x_LBH.shape[1], -1)
    return torch.cat([prompt_PBH, x_LBH]), F.pad(padding_mask_BL, (len(prompt_PH), 0))
