"""What gates read in a pass through encoder and decoder: PEMT, equation 2, and what it is instead of a prompt's mean.

The decoder's gates read the same as the encoder's where that is of the prompt. Means of states are of each layer's own
states in the encoder; the decoder's are of the encoder's output, because a mean of its own would tell a word of later
ones, and would not be the same while a text grows.

Letters: `B` sentences, `L` places with the prompt's, `P` the prompt's alone, `H` the stream's width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fairseq_mtmoe.models.pemt.config import ACTIVATIONS, CORRELATION
from fairseq_mtmoe.slots import SPARSITY, BatchContext, MixturePass, task_sparsity_loss

ENCODER, DECODER = "mixture", "decoder_mixture"  # the keys of each stack's pass in an encoder's output


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
