"""Incremental decoding, in which a beam's hypotheses share keys and values.

fairseq keeps a copy of all keys and values per hypothesis, and copies them whenever a search
reorders its beams. Here the encoder's output, and its keys and values, exist once per sentence.
Keys and values of target words stay at the index of the hypothesis that wrote them. A reorder
changes only a small table of the words that each hypothesis can see. A sentence's hypotheses are
queries of one sequence, so that one product computes all of them.

Letters, besides those of expert_layer.md: `S` sentences, `B` hypotheses per sentence (the beam),
`R` = S·B rows. `A` attention heads, `D` the width of a head, `L` words so far, `P` positions for
words (at least L). `J` words of the source, `K` = L·B positions of a sentence.
"""

from collections.abc import Callable
from typing import Any, Self

import torch
from fairseq.modules import MultiheadAttention
from torch import LongTensor, Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from fairseq_mtmoe.moe.device_kind import device_kind

STATE = "beams"  # key of a decoder's `BeamState` in fairseq's `incremental_state`
TASKS = "tasks"  # key of the conditional modules' cached task values there
FIRST_POSITIONS = 32

KeysAndValues = tuple[Tensor, Tensor]
Caches = dict[Any, KeysAndValues]  # by the block's attention


# Order of rows -> arguments and result of `_compute_order`
_orders: Any = WeakTensorKeyDictionary()


def group_size(num_sentences: int, order_R: Tensor) -> int:
    """Return B if `order_R` repeats each sentence B times, else 1.

    A search asks for this order before its first word.
    """
    size = len(order_R) // max(num_sentences, 1)
    if size < 2 or len(order_R) != size * num_sentences:
        return 1
    sentences = torch.arange(num_sentences, device=order_R.device)
    repeated = sentences.unsqueeze(1).expand(-1, size)
    return size if torch.equal(order_R.view(-1, size), repeated) else 1


def sentence_order(order_R: Tensor, beam: int, num_sentences: int) -> tuple[Tensor, bool]:
    """Return the order of sentences (S,), and whether all keep their places.

    `order_R` is an order of rows, `beam` per sentence. Results are cached, so that the host
    synchronises once per tensor.
    """
    if order_R.is_inference():  # without a version, so that changes would go unnoticed
        return _compute_order(order_R, beam, num_sentences)
    arguments = (order_R._version, beam, num_sentences)
    if order_R not in _orders or _orders[order_R][0] != arguments:
        _orders[order_R] = arguments, _compute_order(order_R, beam, num_sentences)
    order: tuple[Tensor, bool] = _orders[order_R][1]
    return order


def _compute_order(order_R: Tensor, beam: int, num_sentences: int) -> tuple[Tensor, bool]:
    assert len(order_R) % beam == 0, "all sentences have the same number of hypotheses"
    sentence_SB = order_R.view(-1, beam) // beam
    sentence_S = sentence_SB[:, 0].contiguous()
    apart = (sentence_SB != sentence_S.unsqueeze(1)).any()
    moved = (sentence_S != torch.arange(len(sentence_S), device=order_R.device)).any()
    are_apart, are_moved = torch.stack([apart, moved]).tolist()
    assert not are_apart, "hypotheses stay with their sentence in all of fairseq's searches"
    return sentence_S, not are_moved and len(sentence_S) == num_sentences


class SearchedEncoder:
    """Mixin for an encoder: a sentence's hypotheses share its row of the output."""

    shares_beams: Any = True
    select: Any  # (encoder_out, sentences) -> the output of these sentences, in this order

    def reorder_encoder_out(
        self, encoder_out: dict[str, Any], new_order: LongTensor
    ) -> dict[str, Any]:
        """Reorder the output as fairseq does, by sentences instead of rows."""
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
    """A decoder's cache for S sentences with B hypotheses each (`beam`)."""

    def __init__(self, num_sentences: int, beam: int) -> None:
        self.num_sentences = num_sentences
        self.beam = beam
        self.length = 0  # L, including the current word
        # Whether a row descends from the hypothesis at a position, (R, L·B)
        self.visible_RK: Tensor | None = None
        self._own_mask: Tensor | None = None
        self.own: Caches = {}  # each block's keys and values of the target, (S, A, P, B, D)
        self.source: Caches = {}  # each block's keys and values of the source, (S, A, J, D)
        # 0, or -inf at padding, (S, 1, 1, J); set by the first block
        self.source_mask: Tensor | None = None

    @classmethod
    def of(cls, incremental_state: dict[str, Any], num_rows: int, beam: int) -> Self:
        """Return the cache in fairseq's state of a search; the first word creates it."""
        state: Self = incremental_state.setdefault(STATE, cls(num_rows // beam, beam))
        return state

    def read_word(self, real_R: Tensor) -> None:
        """Start the next word.

        `real_R` is False where it is padding, which later words cannot see.
        """
        own_BB = torch.eye(self.beam, dtype=torch.bool, device=real_R.device)
        own_RB = own_BB.repeat(self.num_sentences, 1) & real_R.unsqueeze(1)
        if self.visible_RK is None:
            self.visible_RK = own_RB
        else:
            self.visible_RK = torch.cat([self.visible_RK, own_RB], dim=1)
        self._own_mask = None
        self.length += 1

    def append(self, block: Any, key_RH: Tensor, value_RH: Tensor) -> KeysAndValues:
        """Store a block's keys and values of the current word.

        Return views of all so far, (S, A, L·B, D).
        """
        cache = self.own.get(block)
        if cache is None or self.length > cache[0].shape[2]:
            cache = self.own[block] = self._more_room(block, key_RH)
        for kept, new in zip(cache, (key_RH, value_RH), strict=True):
            kept[:, :, self.length - 1] = split_heads(new, self.num_sentences, block.num_heads)
        keys, values = cache
        keys = keys[:, :, : self.length].flatten(2, 3)
        values = values[:, :, : self.length].flatten(2, 3)
        return keys, values

    def _more_room(self, block: Any, like: Tensor) -> KeysAndValues:
        """Return larger caches: for the first words, or for twice the current number."""
        shape = [
            self.num_sentences,
            block.num_heads,
            max(FIRST_POSITIONS, 2 * self.length),
            self.beam,
            block.head_dim,
        ]
        rooms = (like.new_empty(shape), like.new_empty(shape))
        for room, kept in zip(rooms, self.own.get(block, ()), strict=False):  # empty at first
            room[:, :, : kept.shape[2]] = kept
        return rooms

    def read_source(
        self, block: Any, encoded: Tensor | None, padding_mask: Tensor | None
    ) -> KeysAndValues:
        """Return a block's keys and values of the source, (S, A, J, D), cached.

        encoded: the encoder's output, (J, S, H).
        """
        if block not in self.source:
            assert encoded is not None
            if padding_mask is not None and self.source_mask is None:
                self.source_mask = additive(~padding_mask.bool(), encoded)[:, None, None]
            key = block.k_proj(encoded).transpose(0, 1)
            key = split_heads(key, self.num_sentences, block.num_heads).contiguous()
            value = block.v_proj(encoded).transpose(0, 1)
            value = split_heads(value, self.num_sentences, block.num_heads).contiguous()
            self.source[block] = key, value
        return self.source[block]

    def own_mask(self, like: Tensor) -> Tensor:
        """Return the additive mask of scores of target words, 0 or -inf, (S, 1, B, L·B)."""
        if self._own_mask is None:
            assert self.visible_RK is not None
            mask = additive(self.visible_RK, like)
            self._own_mask = mask.view(self.num_sentences, 1, self.beam, -1)
        return self._own_mask

    def reorder(self, order_R: Tensor) -> None:
        """Let each row continue the row that `order_R` names.

        fairseq's searches ask for it between two words.
        """
        if self.visible_RK is None:
            return
        sentences, stays = sentence_order(order_R, self.beam, self.num_sentences)
        if self.beam > 1:
            self.visible_RK = self.visible_RK.index_select(0, order_R)
        if not stays:
            self._select(sentences)

    def widen(self, beam: int) -> None:
        """Give each sentence `beam` hypotheses, which descend from its only one so far."""
        assert self.beam == 1 and self.visible_RK is not None

        def widened(kept: Tensor) -> Tensor:
            room = kept.new_empty([*kept.shape[:3], beam, kept.shape[4]])
            room[:, :, : self.length] = 0  # masked values must be finite
            room[:, :, : self.length, :1] = kept[:, :, : self.length]
            return room

        self.own = _changed(self.own, widened)
        visible_SLB = self.visible_RK.new_zeros([*self.visible_RK.shape, beam])
        visible_SLB[:, :, 0] = self.visible_RK
        self.visible_RK = visible_SLB.flatten(1).repeat_interleave(beam, 0)
        self._own_mask = None
        self.beam = beam

    def _select(self, sentences_S: Tensor) -> None:
        """Keep only these sentences, in this order.

        If most keep their indices, move the others in place.
        """
        moved = self._moved(sentences_S)

        def selected(kept: Tensor) -> Tensor:
            if moved is None:
                return kept.index_select(0, sentences_S)
            kept[moved] = kept.index_select(0, sentences_S[moved])
            return kept[: len(sentences_S)]

        if self.beam == 1 and self.visible_RK is not None:
            self.visible_RK = self.visible_RK.index_select(0, sentences_S)
        self.own = _changed(self.own, selected)
        self.source = _changed(self.source, selected)
        if self.source_mask is not None:
            self.source_mask = self.source_mask.index_select(0, sentences_S)
        self.num_sentences = len(sentences_S)

    def _moved(self, sentences_S: Tensor) -> Tensor | None:
        """Return the indices that get another sentence, or None.

        They must be few and known without synchronisation.
        """
        if torch.is_grad_enabled() or not device_kind(sentences_S).host_can_read:
            return None
        indices_S = torch.arange(len(sentences_S))
        moved = (sentences_S != indices_S).nonzero().squeeze(1)
        if len(indices_S) > self.num_sentences or 2 * len(moved) > len(indices_S):
            return None
        return moved


def _changed(caches: Caches, change: Callable[[Tensor], Tensor]) -> Caches:
    return {block: (change(key), change(value)) for block, (key, value) in caches.items()}


def additive(visible: Tensor, like: Tensor) -> Tensor:
    """Return 0 where `visible` is True and -inf elsewhere, in the dtype of `like`."""
    return like.new_zeros(visible.shape).masked_fill_(~visible, float("-inf"))


def split_heads(x_RH: Tensor, num_sentences: int, num_heads: int) -> Tensor:
    """Reshape rows to a sequence per sentence and head: (…, R, H) to (S, A, B, D)."""
    return x_RH.reshape(num_sentences, -1, num_heads, x_RH.shape[-1] // num_heads).transpose(1, 2)


class BeamAttention(MultiheadAttention):
    """fairseq's attention, which decodes incrementally with a `BeamState`.

    Blocks let fairseq build its own class and change the class of the result.
    """

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
        """Attend as fairseq does.

        In incremental decoding `query` is one word per row (1, R, H), `key` is (J, S, H), and
        `attn_mask` (S, L) is added to the scores of all words so far, the same for a sentence's
        hypotheses.
        """
        if incremental_state is None:
            result: tuple[Tensor, Tensor | None] = super().forward(
                query,
                key,
                value,
                key_padding_mask,
                need_weights=need_weights,
                static_kv=static_kv,
                attn_mask=attn_mask,
                need_head_weights=need_head_weights,
            )
            return result
        state: BeamState = incremental_state[STATE]
        if self.self_attention:
            keys, values = state.append(self, self.k_proj(query), self.v_proj(query))
            own_mask = state.own_mask(query)
            mask: Tensor | None = own_mask
            if attn_mask is not None:
                bias = attn_mask.repeat_interleave(state.beam, 1)[:, None, None]
                mask = own_mask + bias.type_as(own_mask)
        else:
            keys, values = state.read_source(self, key, key_padding_mask)
            mask = state.source_mask
        query_SABD = split_heads(self.q_proj(query), state.num_sentences, self.num_heads)
        scores = torch.matmul(query_SABD * self.scaling, keys.transpose(2, 3))
        if mask is not None:
            scores.add_(mask)
        weights = scores.softmax(3, dtype=torch.float32).type_as(scores)
        read = torch.matmul(self.dropout_module(weights), values)
        attended = self.out_proj(read.transpose(1, 2).reshape(query.shape))
        if not (need_weights or need_head_weights):
            return attended, None
        weights_ARJ = weights.transpose(0, 1).flatten(1, 2).unsqueeze(2)
        return attended, weights_ARJ if need_head_weights else weights_ARJ.mean(0)
