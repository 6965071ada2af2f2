"""fairseq's transformer with slots in its blocks, built from flat options."""

from argparse import ArgumentParser
from typing import Any, ClassVar, Self

from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from fairseq.models.transformer.transformer_legacy import base_architecture
from torch import LongTensor, Tensor, nn

from fairseq_mtmoe.conditioning import with_new_conditions
from fairseq_mtmoe.core.errors import UserError, flag
from fairseq_mtmoe.core.protocols import TrainingModel
from fairseq_mtmoe.core.sizes import set_defaults
from fairseq_mtmoe.core.transformer_options import form_of, nested_options
from fairseq_mtmoe.moe.evaluation_routing import route_by_prices_
from fairseq_mtmoe.moe.parallel.token_shuffle import TokenCounts
from fairseq_mtmoe.slots.blocks import Conditions, SlotPlans
from fairseq_mtmoe.translation.model.stacks import Decoder, Encoder


def conditions_of(cfg: Any) -> Conditions | None:
    """Return the conditional parts in a model's flat options, or None.

    Raises `UserError`: wrong options.
    """
    conditions = Conditions.of(cfg, cfg.encoder_embed_dim)
    for name in ("cross_self_attention", "offload_activations"):
        if conditions and getattr(cfg, name):
            raise UserError(f"`{flag(name)}` cannot be combined with `--conditional`.")
    return conditions


class Transformer(TrainingModel, TransformerModelBase):
    """A transformer with slots.

    A dense one can exchange checkpoints with `--arch transformer`.
    """

    accepts_task_ids = True  # `--task translation_heated` passes them on

    # A system with its own blocks sets its stacks here
    encoder_class: ClassVar[type[Encoder]] = Encoder
    decoder_class: ClassVar[type[Decoder]] = Decoder

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the options of the model's dataclass; architectures set the defaults."""
        BaseFairseqModel.add_args.__func__(cls, parser)

    def load_state_dict(
        self,
        state_dict: dict[str, Tensor],
        strict: bool = True,
        model_cfg: Any = None,
        args: Any = None,
    ) -> Any:
        """Load as fairseq does; absent conditional parts keep their values."""
        if self.encoder.conditions is not None:
            state_dict = with_new_conditions(self, state_dict)
        return super().load_state_dict(state_dict, strict)

    def prepare_for_inference_(self, cfg: Any) -> None:
        """Prepare as fairseq does, and for `--bf16`.

        BASE layers route by dual prices, so that a translation does not depend on other sentences.
        """
        route_by_prices_(self)
        # fairseq's hub passes the options of the training, which have no path
        if cfg.common.bf16 and cfg.common_eval.path is not None:
            self.bfloat16()
        super().prepare_for_inference_(cfg)

    @classmethod
    def build_with_slots(
        cls, cfg: Any, task: Any, slot_plans: SlotPlans, conditions: Conditions | None = None
    ) -> Self:
        """Build with fairseq's `build_model` from flat options.

        Both stacks have the same slot plans.
        """
        options = nested_options(cfg)
        options.slot_plans = slot_plans
        options.conditions = conditions
        options.form = form_of(cfg)
        model: Self = TransformerModelBase.build_model.__func__(cls, options, task)
        del options.slot_plans, options.conditions, options.form
        return model

    @classmethod
    def build_encoder(
        cls, cfg: TransformerConfig, src_dict: Any, embed_tokens: nn.Module
    ) -> Encoder:
        """Build the encoder for fairseq."""
        return cls.encoder_class(cfg, src_dict, embed_tokens, cfg.slot_plans, cfg.conditions)

    @classmethod
    def build_decoder(
        cls, cfg: TransformerConfig, tgt_dict: Any, embed_tokens: nn.Module
    ) -> Decoder:
        """Build the decoder for fairseq."""
        has_no_source = {"no_encoder_attn": cfg.no_cross_attention}
        return cls.decoder_class(
            cfg, tgt_dict, embed_tokens, cfg.slot_plans, cfg.conditions, **has_no_source
        )

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        prev_output_tokens: Tensor,
        return_all_hiddens: bool = True,
        features_only: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
        task_ids: LongTensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute as fairseq does; `task_ids` has one id per sentence, (B,)."""
        both = {"src_lengths": src_lengths, "return_all_hiddens": return_all_hiddens}
        # Ranks exchange the counts of both stacks together
        counts = TokenCounts(prev_output_tokens.numel())
        encoder_out = self.encoder(src_tokens, task_ids=task_ids, token_counts=counts, **both)
        encoder_out["token_counts"] = [counts.of_next()]
        output: tuple[Tensor, dict[str, Any]] = self.decoder(
            prev_output_tokens,
            encoder_out,
            **both,
            features_only=features_only,
            alignment_layer=alignment_layer,
            alignment_heads=alignment_heads,
        )
        return output


# ---- named sizes ----
# A sparse architecture and its dense twin share a function, and have the same active size.


def tiny(args: Any) -> None:
    """Set 2+2 blocks of width 64, for tests and first steps on a CPU."""
    set_defaults(
        args, encoder_embed_dim=64, encoder_ffn_embed_dim=128, encoder_layers=2, decoder_layers=2
    )
    set_defaults(
        args,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        share_all_embeddings=True,
        num_experts=4,
    )
    base_architecture(args)


def wmt15(args: Any) -> None:
    """Set the sizes of the paper's WMT-15 models: 6+6 blocks, one vocabulary."""
    set_defaults(
        args,
        encoder_normalize_before=True,
        decoder_normalize_before=True,
        share_all_embeddings=True,
    )
    base_architecture(args)


def ml50(args: Any) -> None:
    """Set the sizes of the paper's ML-50 models: 12+12 blocks of mBART's width."""
    set_defaults(
        args,
        encoder_embed_dim=1024,
        encoder_ffn_embed_dim=4096,
        encoder_layers=12,
        decoder_layers=12,
    )
    set_defaults(args, encoder_attention_heads=16, decoder_attention_heads=16)
    wmt15(args)


SIZES = {"tiny": tiny, "wmt15": wmt15, "ml50": ml50}
