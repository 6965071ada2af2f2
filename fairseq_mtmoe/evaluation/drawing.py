"""Sampled translations instead of a search: fairseq's `--sampling`.

A translation depends only on the seed and its sentence, not on batch, process or run: each sentence has its own random
numbers, one for each word. Letters are those of `beam_search.py`.
"""

import random
from collections.abc import Sequence
from typing import Any

import torch
import xxhash
from torch import Tensor, nn

from fairseq_mtmoe.evaluation.beam_search import NEVER, BeamSearch, Reader, Scores

_AT_ONCE = 1 << 22  # scores of words that are summed at a time


class Drawing(BeamSearch):
    """Replaces `BeamSearch`: draws one hypothesis per beam, the most probable first.

    topk: number of the most probable words to draw from; None: all.
    """

    def __init__(self, generator: Any, seed: int, topk: int | None = None, n_best: int = 1) -> None:
        super().__init__(generator, n_best=n_best)
        self._seed, self._words = seed, _Words(topk, generator.pad, generator.eos)

    @torch.no_grad()
    def generate(
        self, models: Sequence[Any], sample: dict[str, Any], prefix_tokens: Tensor | None = None,
        constraints: None = None, bos_token: int | None = None,
    ) -> list[list[dict[str, Tensor]]]:  # fmt: skip
        """Return hypotheses as `BeamSearch.generate` does."""
        pad = self._words.pad
        given = sample["net_input"]["src_tokens"].tolist()
        begins = [bos_token] * len(given) if prefix_tokens is None else prefix_tokens[:, 0].tolist()
        texts = [[first, *(one for one in tokens if one != pad)] for first, tokens in zip(begins, given, strict=True)]
        draws = [self._drawn(sample, texts, prefix_tokens, bos_token, draw) for draw in range(self._beam)]
        found = [sorted(each, key=lambda one: -float(one["score"])) for each in zip(*draws, strict=True)]
        return [each[: self._n_best] for each in found]

    def _drawn(
        self, sample: dict[str, Any], texts: Sequence[object], prefix_tokens: Tensor | None, bos_token: int | None,
        draw: int,
    ) -> list[dict[str, Tensor]]:  # fmt: skip
        """Draw one hypothesis of each sentence."""
        numbers = [random.Random(xxhash.xxh3_64_intdigest(repr((self._seed, draw, text)).encode())) for text in texts]
        limit_R = self.limits(sample["net_input"]["src_lengths"])
        reader = Reader(self._ensemble, sample["net_input"], 1, self._words)
        tokens_RL = limit_R.new_full((len(texts), 1), self._eos if bos_token is None else bos_token)
        total_R = torch.zeros(len(texts), dtype=torch.float64, device=limit_R.device)
        if prefix_tokens is not None:
            self._words.uniform_R = total_R
            total_R = total_R + reader.read(tokens_RL, prefix_tokens[:, 0]).asked_R
            tokens_RL = torch.cat([tokens_RL, prefix_tokens[:, :1]], 1)
        left, found = list(range(len(texts))), dict[int, dict[str, Tensor]]()
        while left:
            self._words.uniform_R = total_R.new_tensor([numbers[one].random() for one in left])
            scores, length = reader.read(tokens_RL, torch.full_like(limit_R, self._eos)), tokens_RL.shape[1]
            at_end_R = length > limit_R
            words_R = scores.words_RK[:, 0].masked_fill(at_end_R, self._eos)
            total_R = total_R + torch.where(at_end_R, scores.asked_R, scores.values_RK[:, 0])
            tokens_RL = torch.cat([tokens_RL, words_R.unsqueeze(1)], 1)
            for row in (words_R == self._eos).nonzero().squeeze(1).tolist():
                found[left[row]] = {"tokens": tokens_RL[row, 1:], "score": total_R[row] / length**self._penalty}
            order_R = (words_R != self._eos).nonzero().squeeze(1)
            if 0 < len(order_R) < len(left):
                reader.reorder(order_R)
            left = [left[row] for row in order_R.tolist()]
            tokens_RL, total_R, limit_R = tokens_RL[order_R], total_R[order_R], limit_R[order_R]
        return [found[number] for number in range(len(texts))]


class _Words:
    """Draws a word per row by `uniform_R` in [0, 1), never `pad`, nor `eos` at first."""

    def __init__(self, topk: int | None, pad: int, eos: int) -> None:
        self.pad, self._topk, self._eos = pad, topk, eos
        self.uniform_R = torch.empty(0)

    def projected(self, features_RH: Tensor, layer: nn.Linear, asked_R: Tensor, may_end: bool) -> Scores:
        return self.given(nn.functional.log_softmax(layer(features_RH), 1), asked_R, may_end)

    def given(self, log_probs_RV: Tensor, asked_R: Tensor, may_end: bool) -> Scores:
        log_probs_RV = log_probs_RV.nan_to_num(nan=NEVER, posinf=float("inf"), neginf=NEVER)
        of_asked_R = log_probs_RV.gather(1, asked_R.unsqueeze(1)).squeeze(1)
        log_probs_RV[:, [self.pad] if may_end else [self.pad, self._eos]] = NEVER
        rows = max(1, _AT_ONCE // log_probs_RV.shape[1])
        parts = zip(torch.split(log_probs_RV, rows), torch.split(self.uniform_R, rows), strict=True)
        words_R1 = torch.cat([self._chosen(*part) for part in parts])
        return Scores(log_probs_RV.gather(1, words_R1), words_R1, of_asked_R)

    def _chosen(self, log_probs_RV: Tensor, uniform_R: Tensor) -> Tensor:
        """(R, 1) Return the word at which cumulative probability exceeds that share."""
        words = log_probs_RV.shape[1]
        best = None if self._topk is None else log_probs_RV.topk(min(self._topk, words))
        sums_RK = (log_probs_RV if best is None else best.values).double().exp().cumsum(1)
        index_R1 = torch.searchsorted(sums_RK, uniform_R.unsqueeze(1) * sums_RK[:, -1:], right=True)
        index_R1 = index_R1.clamp(max=sums_RK.shape[1] - 1)
        return index_R1 if best is None else best.indices.gather(1, index_R1)
