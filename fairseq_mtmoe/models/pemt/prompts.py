"""Prompts that describe tasks, how a target's is correlated with its sources', and what gates read of them.

PEMT, §3.1 and §3.2, equations 3 and 4, and the summary of equation 2. Any backbone can have prompts before its tokens.

The decoder's gates read the same as the encoder's where that is of the prompt. Means of states are of each layer's own
states in the encoder; the decoder's are of the encoder's output, because a mean of its own would tell a word of later
ones, and would not be the same while a text grows.

Letters, besides those of `moe/README.md`: `K` sources, `N` vectors of a source's prompt (of the longest), `P` of the
model's own prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_mtmoe.models.pemt.config import ACTIVATIONS, CORRELATION, DESCRIPTION
from fairseq_mtmoe.moe.mixture import layer_similarity
from fairseq_mtmoe.slots import SPARSITY, BatchContext, MixturePass, task_sparsity_loss

ENCODER, DECODER = "mixture", "decoder_mixture"  # the keys of each stack's input of gates in an encoder's output
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


# ---- what gates read ----


def encoder_pass(
    gate_input: str, prompt_PH: Tensor | None, padding_mask_BL: Tensor, wants_similarities: bool, first: int = 0
) -> MixturePass:
    """What the encoder's gates read.

    Args:
        gate_input: one of `config.GATE_INPUTS`.
        prompt_PH: which stands beside each sentence's words; None only where gates read hidden states.
        padding_mask_BL: True at padding, of prompt and words.
        wants_similarities: for the task sparsity loss.
        first: where the prompt begins.
    """
    if gate_input == CORRELATION:
        assert prompt_PH is not None
        return MixturePass(prompt_PH.mean(0), wants_similarities)
    reads_BL = ~padding_mask_BL
    if gate_input == ACTIVATIONS:
        assert prompt_PH is not None
        places_BL = torch.arange(reads_BL.shape[1], device=reads_BL.device).expand_as(reads_BL)
        reads_BL = (first <= places_BL) & (places_BL < first + len(prompt_PH))
    return MixturePass(partial(mean_states, reads_BL=reads_BL), wants_similarities)


def mean_states(states_LBH: Tensor, reads_BL: Tensor) -> Tensor:
    """The mean of each sentence's states in the places that are read, (B, H), float32."""
    shares_BL = reads_BL / reads_BL.sum(1, keepdim=True).clamp(min=1)
    return torch.einsum("lbh,bl->bh", states_LBH.float(), shares_BL)


def decoder_pass(of_encoder: MixturePass, states_LBH: Tensor) -> MixturePass:
    """What the decoder's gates read, after a pass through the encoder whose output is `states_LBH`."""
    summary = of_encoder.summary
    return MixturePass(summary(states_LBH) if callable(summary) else summary, of_encoder.wants_similarities)


def of_rows(of_sentences: MixturePass, beam: int) -> MixturePass:
    """What gates of the decoder read of hypotheses, so many of each sentence; both share weights."""
    summary = of_sentences.summary
    assert isinstance(summary, Tensor)
    if beam == 1 or summary.dim() == 1:
        return of_sentences
    return replace(of_sentences, sentences=torch.arange(len(summary), device=summary.device).repeat_interleave(beam))


def selected(of_sentences: MixturePass, sentences: Tensor) -> MixturePass:
    """The same of these sentences, in this order."""
    summary = of_sentences.summary
    assert isinstance(summary, Tensor)
    if summary.dim() == 1:
        return of_sentences
    weights = {block: weights.index_select(0, sentences) for block, weights in of_sentences.weights.items()}
    return MixturePass(summary.index_select(0, sentences), weights=weights)


# ---- what stacks of any backbone give on ----


def record_similarity(block: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """A hook after a block's forward pass: how like its output (L, B, H) its sources' are, but for padding.

    It comes before the hooks of what completes the output.
    """
    context: BatchContext = inputs[1]
    through = context.mixture
    if through is not None and block in through.narrow:
        states = output if isinstance(output, Tensor) else output[0]
        cosines = block.mixture.adapters.cosines(through.narrow.pop(block), states)
        weights = through.of_columns(through.weights[block])
        through.similarities[block] = layer_similarity(cosines, weights, context.padding_mask)


def with_passes(output: dict[str, list[Any]], states_LBH: Tensor, context: BatchContext) -> dict[str, list[Any]]:
    """An encoder's output with the pass that was, if there was one, and the decoder's."""
    if context.mixture is None:
        return output
    return {**output, ENCODER: [context.mixture], DECODER: [decoder_pass(context.mixture, states_LBH)]}


def with_selected(output: dict[str, Any], encoder_out: Mapping[str, Any], sentences: Tensor) -> dict[str, Any]:
    """What an encoder selected of its output for these sentences, with the decoder's pass of them."""
    if DECODER not in encoder_out:
        return output
    return {**output, DECODER: [selected(mixture, sentences) for mixture in encoder_out[DECODER]]}


def of_decoder(encoder_out: Mapping[str, Any]) -> MixturePass | None:
    """What the decoder's gates read of the rows that it has; None where there are no gates."""
    if DECODER not in encoder_out:
        return None
    (beam,), (mixture,) = encoder_out.get("beam", [1]), encoder_out[DECODER]
    return of_rows(mixture, beam)


def with_sparsity(extra: dict[str, Any], context: BatchContext, encoder_out: Mapping[str, Any]) -> dict[str, Any]:
    """What a decoder says beside its states, with the task sparsity loss of all layers where it is wanted."""
    if context.mixture is None or not context.mixture.wants_similarities:
        return extra
    return {**extra, SPARSITY: task_sparsity_loss([*encoder_out[ENCODER], context.mixture])}


class Prompted(nn.Module):
    """Mixed into a stack, before its backbone's; `PemtModel` sets what is to be set.

    Attributes:
        prompt: beside the tokens of each text; None without.
        gate_input: what gates read, one of `config.GATE_INPUTS`; None where there are none.
        wants_sparsity: whether a pass in training is to give the task sparsity loss.
    """

    prompt: Prompt | None
    gate_input: str | None
    wants_sparsity = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prompt = self.gate_input = None

    def prompt_of_pass(self) -> Tensor | None:
        """What the prompt is in one pass, (P, H): under its dropout another one each time; None without."""
        return None if self.prompt is None else self.prompt()

    def mixture_of(self, prompt_PH: Tensor | None, padding_mask_BL: Tensor, first: int = 0) -> MixturePass | None:
        """What gates read in a pass; None where there are none. See `encoder_pass`."""
        if self.gate_input is None:
            return None
        wants_similarities = self.training and self.wants_sparsity
        return encoder_pass(self.gate_input, prompt_PH, padding_mask_BL, wants_similarities, first)
