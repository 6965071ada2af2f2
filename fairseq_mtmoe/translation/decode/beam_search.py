"""fairseq's beam search, faster, for a few best hypotheses of each sentence.

A sentence has one row up to its first free word. Scores of all words are computed for some hundred
rows at a time in reused memory, and read once, a few rows at a time that fit into a cache. Each
sentence has a limit by its own length.

Letters: `S` sentences, `N` sentences that are left, `B` hypotheses per sentence (the beam; 1 at
first), `R` = N·B rows, `L` words so far, `V` words of the dictionary, `C` columns of words, `K`
candidates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.models.transformer import TransformerDecoderBase, TransformerModelBase
from torch import Tensor, nn

from fairseq_mtmoe.moe.device_kind import device_kind
from fairseq_mtmoe.translation.model.stacks import Decoder

NO_LAYER = -1  # fairseq's decoders return no layer's attention
NEVER = float("-inf")
_DEEP = 64  # words in a column: the best words of a row are in its best columns
_MANY = 4096  # number of words from which columns pay off
_ROWS = 512  # rows whose words are scored at a time
_AT_ONCE = 1 << 18  # scores that fit into a core's own cache


class BeamSearch:
    """Replaces fairseq's plain search, `generator`.

    Args:
        generator: fairseq's.
        goes_on: returns whether any process has a sentence left, as all must call the model equally
            often; None: there is one process.
        n_best: hypotheses to return for each sentence, at most the beam's width.
    """

    def __init__(
        self, generator: Any, goes_on: Callable[[bool], bool] | None = None, n_best: int = 1
    ) -> None:
        self._goes_on = goes_on or bool
        self._n_best = n_best
        self._ensemble = generator.model
        self._beam = int(generator.beam_size)
        self._eos = generator.eos
        self._penalty = generator.len_penalty
        self._generator = generator
        # As in fairseq: there are 2 * beam candidates, of which the first half may end.
        self._scorer = _WordScorer(2 * self._beam, generator.pad, generator.eos)

    @torch.no_grad()
    def generate(
        self,
        models: Sequence[Any],
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        bos_token: int | None = None,
    ) -> list[list[dict[str, Tensor]]]:
        """Return the best hypotheses of each sentence, in fairseq's generators' form.

        Each has `tokens` and a `score`: its log-probability, normalised by length as in fairseq.
        Translations begin with `prefix_tokens` (S, 1); `bos_token` is the decoder's first input.
        """
        limit_S = length_limits(self._generator, sample["net_input"]["src_lengths"])
        reader = Reader(self._ensemble, sample["net_input"], self._beam, self._scorer)
        first = self._eos if bos_token is None else bos_token
        beams = _Beams(limit_S, reader.width, self._beam, first, self._eos, self._penalty)
        if prefix_tokens is not None:
            forced_R = prefix_tokens[:, 0].repeat_interleave(reader.width)
            beams.append(forced_R, reader.read(beams.tokens_RL, forced_R).asked_R)
        order_R: Tensor | None = None
        tokens_RL = beams.tokens_RL
        while self._goes_on(beams.is_growing):
            if beams.is_growing:
                if order_R is not None:
                    reader.reorder(order_R)
                tokens_RL = beams.tokens_RL
            # A process without sentences repeats its last call, because others wait for its
            # experts.
            scores = reader.read(tokens_RL, torch.full_like(tokens_RL[:, 0], self._eos))
            if beams.is_growing:
                order_R = beams.grow(scores)
        return beams.finished(self._n_best)


def length_limits(generator: Any, lengths_S: Tensor) -> Tensor:
    """Return each translation's limit of words, without its end, (S,)."""
    limit_S: Tensor = generator.max_len_a * lengths_S.double() + float(generator.max_len_b)
    return limit_S.clamp(1, generator.max_len - 1).long()


@dataclass(frozen=True)
class Scores:
    """Each row's next word: the K best log-probabilities, words, and the asked one."""

    values_RK: Tensor
    words_RK: Tensor
    asked_R: Tensor


class _WordScorer:
    """Finds the `count` best words in reused memory: never `pad`, at first no `eos`."""

    def __init__(self, count: int, pad: int, eos: int) -> None:
        self._count = count
        self._pad = pad
        self._eos = eos
        self._room = torch.empty(0)

    def projected(
        self, features_RH: Tensor, layer: nn.Linear, asked_R: Tensor, may_end: bool
    ) -> Scores:
        rows = [slice(start, start + _ROWS) for start in range(0, len(features_RH), _ROWS)]
        parts = [self._of_rows(features_RH[some], layer, asked_R[some], may_end) for some in rows]
        return Scores(*map(torch.cat, zip(*parts, strict=True)))

    def chosen(self, log_probs_RV: Tensor, asked_R: Tensor, may_end: bool) -> Scores:
        log_probs_RV.nan_to_num_(nan=NEVER, posinf=float("inf"), neginf=NEVER)
        asked_scores_R = log_probs_RV.gather(1, asked_R.unsqueeze(1)).squeeze(1)
        log_probs_RV[:, self._forbidden(may_end)] = NEVER
        count = min(self._count, log_probs_RV.shape[1] - 1)
        return Scores(*log_probs_RV.topk(count), asked_scores_R)

    def _of_rows(
        self, features_RH: Tensor, layer: nn.Linear, asked_R: Tensor, may_end: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        words = len(layer.weight)
        width = -(-words // _DEEP)  # columns beyond the words are never the best
        if len(self._room) < len(features_RH) * width * _DEEP:
            self._room = features_RH.new_empty(len(features_RH) * width * _DEEP)
        logits_RV = self._room[: len(features_RH) * width * _DEEP].view(-1, width * _DEEP)
        torch.mm(features_RH, layer.weight.t(), out=logits_RV[:, :words])
        if layer.bias is not None:
            logits_RV[:, :words] += layer.bias
        logits_RV[:, words:] = NEVER
        asked_scores_R = logits_RV.gather(1, asked_R.unsqueeze(1)).squeeze(1)
        forbidden = self._forbidden(may_end)
        without_R = logits_RV[:, forbidden].logsumexp(1)
        logits_RV[:, forbidden] = NEVER
        log_sum_R, columns_RC = _summed(logits_RV, width)
        log_sum_R = torch.logaddexp(log_sum_R, without_R)
        count = min(self._count, words - 1)
        if words < _MANY:
            values_RK, words_RK = logits_RV.topk(count)
        else:
            values_RK, words_RK = _highest(logits_RV, columns_RC, count)
        return values_RK - log_sum_R.unsqueeze(1), words_RK, asked_scores_R - log_sum_R

    def _forbidden(self, may_end: bool) -> list[int]:
        """Return the words that may not come next."""
        return [self._pad] if may_end else [self._pad, self._eos]


def _highest(logits_RV: Tensor, columns_RC: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return `topk`, (R, K), from the best columns; word `w` is in column `w % C`."""
    width = columns_RC.shape[1]
    columns_RK = columns_RC.topk(min(count, width)).indices
    deep = columns_RK.unsqueeze(1).expand(-1, _DEEP, -1)
    values_RK, index_RK = (
        logits_RV.view(len(deep), _DEEP, width).gather(2, deep).flatten(1).topk(count)
    )
    words_RK = index_RK // deep.shape[2] * width + columns_RK.gather(1, index_RK % deep.shape[2])
    return values_RK, words_RK


def _summed(logits_RV: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return each row's logsumexp, (R,), and the maxima of its columns, (R, C)."""
    rows = max(1, _AT_ONCE // logits_RV.shape[1])
    columns_RC = logits_RV.new_empty(len(logits_RV), width)
    sum_R = logits_RV.new_empty(len(logits_RV))
    room = logits_RV.new_empty(rows, logits_RV.shape[1])
    for start in range(0, len(logits_RV), rows):
        some = logits_RV[start : start + rows]
        part = slice(start, start + rows)
        torch.amax(some.view(len(some), _DEEP, width), 1, out=columns_RC[part])
        highest = columns_RC[part].amax(1, keepdim=True)
        exponentials = torch.sub(some, highest, out=room[: len(some)]).exp_()
        torch.sum(exponentials, 1, out=sum_R[part])
    return columns_RC.amax(1) + sum_R.log(), columns_RC


class Reader:
    """Computes scores of a batch's next words, and keeps the models' states.

    It begins with one row per sentence, if all decoders can share states.
    """

    def __init__(
        self, ensemble: Any, net_input: dict[str, Any], beam: int, scorer: _WordScorer
    ) -> None:
        self._ensemble = ensemble
        self._beam = beam
        self._scorer = scorer
        self._projection = projection(ensemble.single_model) if ensemble.models_size == 1 else None
        self._encoded = ensemble.forward_encoder(net_input)
        self._states: list[dict[str, Any]] = [{} for _ in range(ensemble.models_size)]
        decoders = [model.decoder for model in ensemble.models]
        # Whether a sentence's hypotheses can share states in all decoders
        shares = all(isinstance(decoder, Decoder) and decoder.shares_beams for decoder in decoders)
        self.width = 1 if shares else beam
        self._sentence_S = torch.arange(
            len(net_input["src_tokens"]), device=net_input["src_tokens"].device
        )
        if self.width > 1:
            self._share_source()

    def read(self, tokens_RL: Tensor, asked_R: Tensor) -> Scores:
        """Return scores of the next words, and of the words `asked_R`."""
        may_end = tokens_RL.shape[1] > 1
        if self._projection is not None:
            (encoded,), (state,) = self._encoded, self._states
            features, _ = self._ensemble.single_model.decoder(
                tokens_RL,
                encoder_out=encoded,
                incremental_state=state,
                features_only=True,
                alignment_layer=NO_LAYER,
            )
            return self._scorer.projected(features[:, -1], self._projection, asked_R, may_end)
        log_probs_RV, _ = self._ensemble.forward_decoder(tokens_RL, self._encoded, self._states)
        return self._scorer.chosen(log_probs_RV, asked_R, may_end)

    def reorder(self, order_R: Tensor) -> None:
        """Continue rows from the rows `order_R`, which are beam-wide for each sentence."""
        if self.width < self._beam:
            self._share_source()
            for model, state in zip(self._ensemble.models, self._states, strict=True):
                model.decoder.widen(state, self._beam)
            self.width = self._beam
        self._ensemble.reorder_incremental_state(self._states, order_R)
        self._encoded = self._ensemble.reorder_encoder_out(self._encoded, order_R)

    def _share_source(self) -> None:
        order_R = self._sentence_S.repeat_interleave(self._beam)
        self._encoded = self._ensemble.reorder_encoder_out(self._encoded, order_R)


class _Beams:
    """A batch's hypotheses, ended by `eos`; scores are divided by length^`penalty`."""

    def __init__(
        self, limit_S: Tensor, width: int, beam: int, first: int, eos: int, penalty: float
    ) -> None:
        # `limit_S`: limit of words without the end. Sentences begin with `width` rows; only the
        # first row counts.
        self._beam = beam
        self._eos = eos
        self._penalty = penalty
        self._limit_N = limit_S
        sentences = len(limit_S)
        self.tokens_RL = limit_S.new_full((sentences * width, 1), first)  # the decoder's input
        self._total_NB = torch.full((sentences, width), NEVER, device=limit_S.device)
        self._total_NB[:, 0] = 0
        self._sentence_N = torch.arange(sentences, device=limit_S.device)
        self._ended_N = torch.zeros_like(limit_S)
        self._nothing = {"tokens": limit_S.new_full((1,), eos), "score": torch.tensor(NEVER)}
        self._finished: list[list[dict[str, Tensor]]] = [[] for _ in range(sentences)]

    def finished(self, n_best: int) -> list[list[dict[str, Tensor]]]:
        """Return each sentence's best finished hypotheses, or one of nothing but the end."""
        best = []
        for hypotheses in self._finished:
            in_order = sorted(hypotheses, key=lambda hypothesis: -float(hypothesis["score"]))
            best.append(in_order[:n_best] or [self._nothing])
        return best

    @property
    def is_growing(self) -> bool:
        """Whether a sentence is left."""
        return len(self._sentence_N) > 0

    @property
    def length(self) -> int:
        """Number of tokens so far, with the first."""
        return self.tokens_RL.shape[1]

    def append(self, words_R: Tensor, scores_R: Tensor) -> None:
        """Append given words with their scores."""
        self.tokens_RL = torch.cat([self.tokens_RL, words_R.unsqueeze(1)], 1)
        self._total_NB = self._total_NB + scores_R.view_as(self._total_NB)

    def grow(self, scores: Scores) -> Tensor:
        """Extend hypotheses by the best next words; `scores` were asked of the end.

        Returns the rows (R,) that the new ones continue, as if all sentences had been beam-wide.
        """
        total_NK, words_NK, parents_NK = self._candidates(scores)
        ends_NK = (words_NK == self._eos) & (total_NK > NEVER)
        self._end(ends_NK[:, : self._beam], total_NK[:, : self._beam], parents_NK[:, : self._beam])
        left_N = (self._ended_N < self._beam) & (self.length <= self._limit_N)
        # the first candidates that do not end
        count = total_NK.shape[1]
        rank_NK = torch.arange(count, device=total_NK.device) + ends_NK * count
        index_N = _without_holes(left_N)
        chosen_NB = rank_NK.topk(self._beam, largest=False).indices[index_N]
        parents_NB = parents_NK[index_N].gather(1, chosen_NB)
        width = len(self.tokens_RL) // len(left_N)
        rows_R = (index_N.unsqueeze(1) * width + parents_NB).flatten()
        words_R = words_NK[index_N].gather(1, chosen_NB).flatten()
        continued_RL = self.tokens_RL.index_select(0, rows_R)
        self.tokens_RL = torch.cat([continued_RL, words_R.unsqueeze(1)], 1)
        self._total_NB = total_NK[index_N].gather(1, chosen_NB)
        self._limit_N = self._limit_N[index_N]
        self._ended_N = self._ended_N[index_N]
        self._sentence_N = self._sentence_N[index_N]
        return (index_N.unsqueeze(1) * self._beam + parents_NB).flatten()

    def _candidates(self, scores: Scores) -> tuple[Tensor, Tensor, Tensor]:
        """Return the best candidates, (N, K): total scores, words, and parent hypotheses."""
        shape = *self._total_NB.shape, -1
        total_NBK = scores.values_RK.view(shape) + self._total_NB.unsqueeze(2)
        words_NBK = scores.words_RK.view(shape)
        at_end_N = self.length > self._limit_N
        if at_end_N.any():  # only the end may follow
            total_NBK[at_end_N] = NEVER
            ended_NB = scores.asked_R.view_as(self._total_NB) + self._total_NB
            total_NBK[at_end_N, :, 0] = ended_NB[at_end_N]
            words_NBK[at_end_N, :, 0] = self._eos
        total_NK, index_NK = total_NBK.flatten(1).topk(min(2 * self._beam, total_NBK[0].numel()))
        return total_NK, words_NBK.flatten(1).gather(1, index_NK), index_NK // words_NBK.shape[2]

    def _end(self, ends_NB: Tensor, total_NB: Tensor, parents_NB: Tensor) -> None:
        """Keep ended hypotheses, up to the beam's width."""
        if not ends_NB.any():
            return
        counted_NB = ends_NB & (ends_NB.cumsum(1) + self._ended_N.unsqueeze(1) <= self._beam)
        self._ended_N = self._ended_N + counted_NB.sum(1)
        indices, places = counted_NB.nonzero(as_tuple=True)
        rows = indices * (len(self.tokens_RL) // len(counted_NB)) + parents_NB[indices, places]
        ended = nn.functional.pad(self.tokens_RL[rows, 1:], (0, 1), value=self._eos)
        values = (total_NB[indices, places] / self.length**self._penalty).cpu()
        sentences = self._sentence_N[indices].tolist()
        for sentence, tokens, score in zip(sentences, ended, values, strict=True):
            self._finished[sentence].append({"tokens": tokens, "score": score})


def _without_holes(left_N: Tensor) -> Tensor:
    """Return the indices of those left, moving the last into gaps: most rows stay."""
    indices = left_N.nonzero().squeeze(1)
    front_N = left_N[: len(indices)]
    holes = (~front_N).nonzero().squeeze(1)
    result = torch.arange(len(indices), device=left_N.device)
    result[holes] = indices[len(indices) - len(holes) :]
    return result


def projection(model: Any) -> nn.Linear | None:
    """Return the layer that alone makes the decoder's logits, on a CPU, or None."""
    if not isinstance(model, TransformerModelBase):
        return None
    decoder = type(model.decoder)
    layer = model.decoder.output_projection
    is_fairseqs = type(model).get_normalized_probs == TransformerModelBase.get_normalized_probs
    is_fairseqs &= decoder.output_layer == TransformerDecoderBase.output_layer
    is_fairseqs &= decoder.forward == TransformerDecoderBase.forward
    if not is_fairseqs or type(layer) is not nn.Linear:
        return None
    plain = device_kind(layer.weight).host_can_read and layer.weight.dtype == torch.float32
    return layer if plain and model.decoder.adaptive_softmax is None else None
