"""Attention while a translation grows word by word, for beams.

fairseq keeps one copy of everything per hypothesis, and copies it all whenever the search reorders its beams. Here the
encoder's output, and the keys and values that blocks make of it, exist once per sentence. Those of the words so far
stay at the index of the hypothesis that wrote them. Only a small table is reordered, of who descends from which.
A sentence's hypotheses attend as so many queries of one sequence, which is one product where there were several.

Letters, besides those of expert_layer.md: `S` sentences, `B` hypotheses per sentence (the beam), `R` = S·B rows, `A`
attention heads, `D` the width of a head, `L` words so far, `P` positions for words (at least L), `J` words of the
source, `K` = L·B positions of a sentence.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import MultiheadAttention
from torch import LongTensor, Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from fairseq_mtmoe.moe.device_kind import device_kind

STATE = "beams"  # the key of fairseq's `incremental_state` under which a decoder's `BeamState` is found
TASKS = "tasks"  # and that of what conditional modules made of the tasks
FIRST_POSITIONS = 32

KeysAndValues = tuple[Tensor, Tensor]
Caches = dict[Any, KeysAndValues]  # of each block's attention


class SentenceOrder(NamedTuple):
    """What an order of rows makes of their sentences."""

    sentences: Tensor  # their new order, (S,)
    stays: bool  # all sentences are where they were


_orders: Any = WeakTensorKeyDictionary()  # what was asked about each order of rows, and the answer


def shares_beams(cfg: TransformerConfig) -> bool:
    """Whether a model's hypotheses share; not where blocks attend to source and target as to one sequence."""
    return not cfg.cross_self_attention


def group_size(num_sentences: int, order_R: Tensor) -> int:
    """B if `order_R` repeats each of the sentences B times, as a search does before its first word; else 1."""
    size = len(order_R) // max(num_sentences, 1)
    if size < 2 or len(order_R) != size * num_sentences:
        return 1
    sentences = torch.arange(num_sentences, device=order_R.device)
    return size if torch.equal(order_R.view(-1, size), sentences.unsqueeze(1).expand(-1, size)) else 1


def sentence_order(order_R: Tensor, beam: int, num_sentences: int) -> SentenceOrder:
    """How an order of rows, `beam` for each sentence, orders the sentences; the host asks a GPU once a tensor."""
    if order_R.is_inference():  # it could change unseen
        return _asked(order_R, beam, num_sentences)
    question = (order_R._version, beam, num_sentences)
    if order_R not in _orders or _orders[order_R][0] != question:
        _orders[order_R] = question, _asked(order_R, beam, num_sentences)
    order: SentenceOrder = _orders[order_R][1]
    return order


def _asked(order_R: Tensor, beam: int, num_sentences: int) -> SentenceOrder:
    assert len(order_R) % beam == 0, "all sentences have equally many hypotheses"
    sentence_SB = order_R.view(-1, beam) // beam
    sentence_S = sentence_SB[:, 0].contiguous()
    apart = (sentence_SB != sentence_S.unsqueeze(1)).any()
    moved = (sentence_S != torch.arange(len(sentence_S), device=order_R.device)).any()
    are_apart, are_moved = torch.stack([apart, moved]).tolist()
    assert not are_apart, "no search of fairseq's lets hypotheses change their sentence"
    return SentenceOrder(sentence_S, not are_moved and len(sentence_S) == num_sentences)


class SearchedEncoder:
    """Mixed into an encoder: hypotheses of a sentence, `beam` of them, share its row as long as they stay together."""

    shares_beams: Any = True
    select: Any  # the output of these sentences, in this order

    def reorder_encoder_out(self, encoder_out: dict[str, Any], new_order: LongTensor) -> dict[str, Any]:
        """As fairseq's."""
        (beam,) = encoder_out.get("beam", [1])
        num_sentences = encoder_out["encoder_out"][0].shape[1]
        if beam == 1 and self.shares_beams:
            beam = group_size(num_sentences, new_order)
            if beam > 1:
                return {**encoder_out, "beam": [beam]}
        sentences, stays = sentence_order(new_order, beam, num_sentences)
        selected = encoder_out if stays else self.select(encoder_out, sentences)
        return {**selected, "beam": [beam]}


class BeamState:
    """What a decoder remembers of the S sentences that it is translating, in B hypotheses each (`beam`)."""

    def __init__(self, num_sentences: int, beam: int) -> None:
        self.num_sentences, self.beam = num_sentences, beam
        self.length = 0  # L, with the word that is being read
        self.visible_RK: Tensor | None = None  # whether a row descends from the hypothesis at a position, (R, L·B)
        self._own_mask: Tensor | None = None
        self.own: Caches = {}  # each block's keys and values of the target, (S, A, P, B, D)
        self.source: Caches = {}  # each block's keys and values of the source, (S, A, J, D)
        self.source_mask: Tensor | None = None  # 0, or -inf at padding, (S, 1, 1, J), once a block attended to it

    @classmethod
    def of(cls, incremental_state: dict[str, Any], num_rows: int, beam: int) -> Self:
        """What is in fairseq's state of a search; new before its first word."""
        if STATE not in incremental_state:
            incremental_state[STATE] = cls(num_rows // beam, beam)
        state: Self = incremental_state[STATE]
        return state

    def read_word(self, real_R: Tensor) -> None:
        """Make room for the next word; rows (R,) where it is not `real` but padding will not be looked at."""
        own_BB = torch.eye(self.beam, dtype=torch.bool, device=real_R.device)
        own_RB = own_BB.repeat(self.num_sentences, 1) & real_R.unsqueeze(1)
        self.visible_RK = own_RB if self.visible_RK is None else torch.cat([self.visible_RK, own_RB], dim=1)
        self._own_mask = None
        self.length += 1

    def append(self, block: Any, key_RH: Tensor, value_RH: Tensor) -> KeysAndValues:
        """Write a block's keys and values of the current word; returns all so far, (S, A, L·B, D), as views."""
        cache = self.own.get(block)
        if cache is None or self.length > cache[0].shape[2]:
            cache = self.own[block] = self._more_room(block, key_RH)
        for kept, new in zip(cache, (key_RH, value_RH), strict=True):
            kept[:, :, self.length - 1] = split_heads(new, self.num_sentences, block.num_heads)
        key, value = (kept[:, :, : self.length].flatten(2, 3) for kept in cache)
        return key, value

    def _more_room(self, block: Any, like: Tensor) -> KeysAndValues:
        """Room for the first words, or for twice as many as there are."""
        shape = [self.num_sentences, block.num_heads, max(FIRST_POSITIONS, 2 * self.length), self.beam, block.head_dim]
        rooms = (like.new_empty(shape), like.new_empty(shape))
        for room, kept in zip(rooms, self.own.get(block, ()), strict=False):  # at first nothing is kept
            room[:, :, : kept.shape[2]] = kept
        return rooms

    def read_source(self, block: Any, encoded: Tensor | None, padding_mask: Tensor | None) -> KeysAndValues:
        """A block's keys and values of the source (J, S, H), (S, A, J, D), made when they are first asked for."""
        if block not in self.source:
            assert encoded is not None
            if padding_mask is not None and self.source_mask is None:
                self.source_mask = additive(~padding_mask.bool(), encoded)[:, None, None]
            made = (linear(encoded).transpose(0, 1) for linear in (block.k_proj, block.v_proj))
            key, value = (split_heads(x, self.num_sentences, block.num_heads).contiguous() for x in made)
            self.source[block] = key, value
        return self.source[block]

    def own_mask(self, like: Tensor) -> Tensor:
        """What every block adds to its scores of the target's words: 0 or -inf, (S, 1, B, L·B)."""
        if self._own_mask is None:
            assert self.visible_RK is not None
            mask = additive(self.visible_RK, like)
            self._own_mask = mask.view(self.num_sentences, 1, self.beam, -1)
        return self._own_mask

    def reorder(self, order_R: Tensor) -> None:
        """Let each row go on from the row that `order_R` names, as fairseq's searches ask between two words."""
        if self.visible_RK is None:
            return
        sentences, stays = sentence_order(order_R, self.beam, self.num_sentences)
        if self.beam > 1:
            self.visible_RK = self.visible_RK.index_select(0, order_R)
        if not stays:
            self._select(sentences)

    def widen(self, beam: int) -> None:
        """Let each sentence have `beam` hypotheses from now on, which descend from the only one that it had."""
        assert self.beam == 1 and self.visible_RK is not None

        def widened(kept: Tensor) -> Tensor:
            room = kept.new_empty([*kept.shape[:3], beam, kept.shape[4]])
            room[:, :, : self.length] = 0  # what nobody looks at must be finite, too
            room[:, :, : self.length, :1] = kept[:, :, : self.length]
            return room

        self.own = _changed(self.own, widened)
        visible_SLB = self.visible_RK.new_zeros([*self.visible_RK.shape, beam])
        visible_SLB[:, :, 0] = self.visible_RK
        self.visible_RK, self._own_mask = visible_SLB.flatten(1).repeat_interleave(beam, 0), None
        self.beam = beam

    def _select(self, sentences_S: Tensor) -> None:
        """Go on with these sentences only, in this order; where most keep their indices, the others are moved."""
        moved = self._moved(sentences_S)

        def selected(kept: Tensor) -> Tensor:
            if moved is None:
                return kept.index_select(0, sentences_S)
            kept[moved] = kept.index_select(0, sentences_S[moved])
            return kept[: len(sentences_S)]

        if self.beam == 1 and self.visible_RK is not None:
            self.visible_RK = self.visible_RK.index_select(0, sentences_S)
        self.own, self.source = _changed(self.own, selected), _changed(self.source, selected)
        if self.source_mask is not None:
            self.source_mask = self.source_mask.index_select(0, sentences_S)
        self.num_sentences = len(sentences_S)

    def _moved(self, sentences_S: Tensor) -> Tensor | None:
        """The indices that get another sentence; None unless these are few, and the host has them at hand."""
        if torch.is_grad_enabled() or not device_kind(sentences_S).can_sync:
            return None
        indices_S = torch.arange(len(sentences_S))
        moved = (sentences_S != indices_S).nonzero().squeeze(1)
        return moved if len(indices_S) <= self.num_sentences and 2 * len(moved) <= len(indices_S) else None


def _changed(caches: Caches, change: Callable[[Tensor], Tensor]) -> Caches:
    return {block: (change(key), change(value)) for block, (key, value) in caches.items()}


def additive(visible: Tensor, like: Tensor) -> Tensor:
    """0 where `visible` is true, -inf elsewhere, of the type of `like`."""
    return like.new_zeros(visible.shape).masked_fill_(~visible, float("-inf"))


def split_heads(x_RH: Tensor, num_sentences: int, num_heads: int) -> Tensor:
    """Rows, grouped by sentence, to one sequence per sentence and head: (…, R, H) to (S, A, B, D)."""
    return x_RH.reshape(num_sentences, -1, num_heads, x_RH.shape[-1] // num_heads).transpose(1, 2)


class BeamAttention(MultiheadAttention):
    """fairseq's attention, with the same parameters; while decoding it works on a `BeamState`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.dropout_module.module_name = MultiheadAttention.__name__  # what `--retain-dropout-modules` calls it

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        key_padding_mask: Tensor | None = None,
        incremental_state: dict[str, Any] | None = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Tensor | None = None,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As fairseq's. While decoding, `query` is one word of each row (1, R, H), and `key` is (J, S, H); `attn_mask`
        is added to the scores of all hypotheses' words so far, (S, L).
        """
        if incremental_state is None:
            result: tuple[Tensor, Tensor | None] = super().forward(
                query, key, value, key_padding_mask, None, need_weights, static_kv, attn_mask, False, need_head_weights
            )
            return result
        state: BeamState = incremental_state[STATE]
        if self.self_attention:
            keys, values = state.append(self, self.k_proj(query), self.v_proj(query))
            own = state.own_mask(query)
            biased = None if attn_mask is None else attn_mask.repeat_interleave(state.beam, 1)[:, None, None]
            mask: Tensor | None = own if biased is None else own + biased.type_as(own)
        else:
            keys, values = state.read_source(self, key, key_padding_mask)
            mask = state.source_mask
        query_SABD = split_heads(self.q_proj(query), state.num_sentences, self.num_heads)
        scores = torch.matmul(query_SABD * self.scaling, keys.transpose(2, 3))
        scores = scores if mask is None else scores.add_(mask)
        weights = scores.softmax(3, dtype=torch.float32).type_as(scores)
        read = torch.matmul(self.dropout_module(weights), values)
        attended = self.out_proj(read.transpose(1, 2).reshape(query.shape))
        if not (need_weights or need_head_weights):
            return attended, None
        weights_ARJ = weights.transpose(0, 1).flatten(1, 2).unsqueeze(2)
        return attended, weights_ARJ if need_head_weights else weights_ARJ.mean(0)
