"""fairseq's encoder-decoder transformer, built from flat options, whose blocks learn their sentences' task ids.

`SparseTransformer` turns every `expert_interval`-th block of both stacks into an expert slot. It needs no task ids
unless a gate does, so it trains under fairseq's own `--task translation` too.
"""

from argparse import ArgumentParser, Namespace
from typing import Any, Dict, List, Optional, Tuple

from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerEncoderBase,
    TransformerModelBase,
)
from torch import LongTensor, Tensor, nn

from fairseq_mtmoe.backbones.translation.blocks import (
    DecoderLayer,
    SparseDecoderLayer,
    SparseEncoderLayer,
    wrap_block,
)
from fairseq_mtmoe.backbones.translation.decoding import (
    STATE,
    BeamState,
    group_size,
    is_identity,
    sentence_order,
    shares_beams,
)
from fairseq_mtmoe.moe.parallel.token_shuffle import TokenCounts
from fairseq_mtmoe.slots import SlotPlan
from fairseq_mtmoe.slots.task_channel import TaskChannel


class SlotStack:
    """Mixed into an encoder or decoder: hands each block its plan, in order, and what it must know of each batch."""

    slot_plans: Dict[int, SlotPlan]

    def start_stack(self, slot_plans: Dict[int, SlotPlan]) -> None:
        """To be called before fairseq builds the blocks."""
        self.slot_plans = slot_plans
        self.channel = TaskChannel()
        self.token_counts = TokenCounts()
        self._built_blocks = 0

    def begin_batch(self, task_ids: Optional[LongTensor]) -> None:
        """To be called before each pass through the blocks, with one id per sentence (B,)."""
        self.channel.task_ids = task_ids
        self.token_counts.reset()

    def upgrade_state_dict_named(self, state_dict: Dict[str, Tensor], name: str) -> Dict[str, Tensor]:
        """As fairseq's, which takes a state without a version for one of years ago and drops the last norm.

        Its moving averages (`--store-ema`) have none.
        """
        state_dict.setdefault(f"{name}.version", self.version)
        return super().upgrade_state_dict_named(state_dict, name)

    def _next_plan(self) -> Optional[SlotPlan]:
        index, self._built_blocks = self._built_blocks, self._built_blocks + 1
        return self.slot_plans.get(index)

    def _slot(self, block: nn.Module, cfg: TransformerConfig) -> nn.Module:
        block = wrap_block(block, cfg)
        self.channel.connect(block)
        return block


class SlotEncoder(SlotStack, TransformerEncoderBase):
    """fairseq's encoder with expert slots."""

    def __init__(self, cfg: TransformerConfig, dictionary: Any, embed_tokens: nn.Module, slot_plans: dict) -> None:
        self.start_stack(slot_plans)
        super().__init__(cfg, dictionary, embed_tokens)

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        """The next block: fairseq's own, or one with an expert slot."""
        plan = self._next_plan()
        if plan is None:
            return super().build_encoder_layer(cfg)
        return self._slot(SparseEncoderLayer(cfg, plan, self.token_counts), cfg)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        return_all_hiddens: bool = False,
        token_embeddings: Optional[Tensor] = None,
        task_ids: Optional[LongTensor] = None,
    ) -> Dict[str, List[Tensor]]:
        """As fairseq's, with `task_ids` (B,), which also come out again under their name."""
        self.begin_batch(task_ids)
        encoder_out = super().forward(src_tokens, src_lengths, return_all_hiddens, token_embeddings)
        encoder_out["task_ids"] = [] if task_ids is None else [task_ids]
        return encoder_out

    def reorder_encoder_out(self, encoder_out: Dict[str, Any], new_order: LongTensor) -> dict:
        """As fairseq's; the task ids follow their sentences.

        Hypotheses of one sentence share its row, as long as they stay together: `beam` says how many they are.
        """
        (beam,) = encoder_out.get("beam", [1])
        num_sentences = encoder_out["encoder_out"][0].shape[1]
        if beam == 1 and shares_beams(self.cfg):
            beam = group_size(num_sentences, new_order)
            if beam > 1:
                return {**encoder_out, "beam": [beam]}
        sentences = sentence_order(new_order, beam)
        if sentences is None:
            sentences, beam = new_order // beam, 1
        elif is_identity(sentences, num_sentences):
            return encoder_out
        reordered = super().reorder_encoder_out(encoder_out, sentences)
        reordered["task_ids"] = [ids.index_select(0, sentences) for ids in encoder_out["task_ids"]]
        return {**reordered, "beam": [beam]}


class SlotDecoder(SlotStack, TransformerDecoderBase):
    """fairseq's decoder with expert slots."""

    def __init__(
        self,
        cfg: TransformerConfig,
        dictionary: Any,
        embed_tokens: nn.Module,
        slot_plans: dict,
        no_encoder_attn: bool = False,
    ) -> None:
        self.start_stack(slot_plans)
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn=no_encoder_attn)

    def build_decoder_layer(self, cfg: TransformerConfig, no_encoder_attn: bool = False) -> nn.Module:
        """The next block: as fairseq's, or one with an expert slot."""
        plan = self._next_plan()
        if plan is None:
            return wrap_block(DecoderLayer(cfg, no_encoder_attn), cfg)
        return self._slot(SparseDecoderLayer(cfg, plan, self.token_counts, no_encoder_attn), cfg)

    def extract_features_scriptable(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Optional[dict] = None,
        incremental_state: Optional[dict] = None,
        *args: Any,
        **kwargs: Any,
    ) -> Tuple[Tensor, dict]:
        """As fairseq's, after telling the blocks the task ids that came with the encoder's output."""
        (beam,) = (encoder_out or {}).get("beam", [1])
        ids = (encoder_out or {}).get("task_ids")
        self.begin_batch(ids[0].repeat_interleave(beam) if ids else None)
        if incremental_state is not None and shares_beams(self.cfg):
            self._read_word(prev_output_tokens, beam, incremental_state)
        elif encoder_out is not None and beam > 1:  # in an ensemble with a model that keeps no state
            encoded, masks = encoder_out["encoder_out"], encoder_out["encoder_padding_mask"]
            encoder_out = {
                "encoder_out": [x.repeat_interleave(beam, 1) for x in encoded],
                "encoder_padding_mask": [mask.repeat_interleave(beam, 0) for mask in masks],
            }
        return super().extract_features_scriptable(prev_output_tokens, encoder_out, incremental_state, *args, **kwargs)

    def _read_word(self, prev_output_tokens: Tensor, beam: int, incremental_state: dict) -> None:
        if STATE not in incremental_state:
            incremental_state[STATE] = BeamState(len(prev_output_tokens) // beam, beam)
        incremental_state[STATE].read_word(prev_output_tokens[:, -1].ne(self.padding_idx))

    def reorder_incremental_state_scripting(self, incremental_state: dict, new_order: Tensor) -> None:
        """As fairseq's: between two words, each row goes on from the row that `new_order` names."""
        if STATE in incremental_state:
            incremental_state[STATE].reorder(new_order)
        else:
            super().reorder_incremental_state_scripting(incremental_state, new_order)


class SparseTransformer(TransformerModelBase):
    """A transformer with expert slots. `slot_plans` maps a block's index to its plan, the same in both stacks.

    All parameters but the experts' have stock fairseq's names: without plans, and while it is dense, a checkpoint of
    `--arch transformer` loads into it, and the reverse.
    """

    # Tells the task `translation_heated` to pass `task_ids` on to the model.
    accepts_task_ids = True

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> List[str]:
        """Read by torch's DDP: the experts that other processes do not have."""
        return [name for name, parameter in self.named_parameters() if hasattr(parameter, "expert")]

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the options of the model's own dataclass; defaults are left to the architecture."""
        BaseFairseqModel.add_args.__func__(cls, parser)

    def load_state_dict(
        self,
        state_dict: Dict[str, Tensor],
        strict: bool = True,
        model_cfg: Any = None,
        args: Optional[Namespace] = None,
    ) -> Any:
        """As fairseq's; the flat options have no layers to prune at loading, so its pruning is told nothing."""
        return super().load_state_dict(state_dict, strict)

    @classmethod
    def build_sparse(cls, cfg: TransformerConfig, task: Any, slot_plans: Dict[int, SlotPlan]) -> "SparseTransformer":
        """Build through fairseq's `build_model`, with the plans at hand where it builds the stacks."""
        cfg.slot_plans = slot_plans
        model = TransformerModelBase.build_model.__func__(cls, cfg, task)
        del cfg.slot_plans
        return model

    @classmethod
    def build_encoder(cls, cfg: TransformerConfig, src_dict: Any, embed_tokens: nn.Module) -> SlotEncoder:
        """Called by fairseq."""
        return SlotEncoder(cfg, src_dict, embed_tokens, cfg.slot_plans)

    @classmethod
    def build_decoder(cls, cfg: TransformerConfig, tgt_dict: Any, embed_tokens: nn.Module) -> SlotDecoder:
        """Called by fairseq."""
        return SlotDecoder(cfg, tgt_dict, embed_tokens, cfg.slot_plans, no_encoder_attn=cfg.no_cross_attention)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        prev_output_tokens: Tensor,
        return_all_hiddens: bool = True,
        features_only: bool = False,
        alignment_layer: Optional[int] = None,
        alignment_heads: Optional[int] = None,
        task_ids: Optional[LongTensor] = None,
    ) -> Tuple[Tensor, dict]:
        """As fairseq's, with one task id per sentence (B,)."""
        encoder_out = self.encoder(
            src_tokens, src_lengths=src_lengths, return_all_hiddens=return_all_hiddens, task_ids=task_ids
        )
        return self.decoder(
            prev_output_tokens,
            encoder_out=encoder_out,
            features_only=features_only,
            alignment_layer=alignment_layer,
            alignment_heads=alignment_heads,
            src_lengths=src_lengths,
            return_all_hiddens=return_all_hiddens,
        )
