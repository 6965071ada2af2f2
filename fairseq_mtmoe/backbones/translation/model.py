"""fairseq's encoder-decoder transformer, built from flat options, whose blocks have slots and learn the task ids."""

from argparse import ArgumentParser
from dataclasses import replace
from typing import Any, ClassVar, Self

from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from fairseq.models.transformer.transformer_legacy import base_architecture
from torch import LongTensor, Tensor, nn

from fairseq_mtmoe.backbones.blocks import Conditions, SlotPlans
from fairseq_mtmoe.backbones.sizes import set_defaults
from fairseq_mtmoe.backbones.translation.stacks import Decoder, Encoder
from fairseq_mtmoe.conditioning import with_new_conditions
from fairseq_mtmoe.errors import raise_invalid
from fairseq_mtmoe.moe.gates import base_gates
from fairseq_mtmoe.moe.parallel.token_shuffle import TokenCounts
from fairseq_mtmoe.options import names_of_tasks
from fairseq_mtmoe.options.conditional import conditional_parts
from fairseq_mtmoe.options.transformer import form_of, nested_options


def conditions_of(cfg: Any) -> Conditions | None:
    """The conditional parts that a model's flat options name; None without. Raises `UserError` for wrong options."""
    parts = conditional_parts(cfg)
    if not parts:
        return None
    for name in ("cross_self_attention", "offload_activations"):
        if getattr(cfg, name):
            raise_invalid(f"--{name.replace('_', '-')}", "off with --conditional", True)
    return Conditions(parts, len(names_of_tasks(cfg)), cfg.encoder_embed_dim, cfg.conditional_positions)


class Transformer(TransformerModelBase):
    """A transformer with slots; while it is dense, it and `--arch transformer` load each other's checkpoints."""

    accepts_task_ids = True  # `--task translation_heated` passes them on

    # A system whose blocks are its own names its stacks here.
    encoder_class: ClassVar[type[Encoder]] = Encoder
    decoder_class: ClassVar[type[Decoder]] = Decoder

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the options of the model's own dataclass; defaults are left to the architecture."""
        BaseFairseqModel.add_args.__func__(cls, parser)

    def load_state_dict(
        self, state_dict: dict[str, Tensor], strict: bool = True, model_cfg: Any = None, args: Any = None
    ) -> Any:
        """As fairseq's, without pruning layers; what adapts to tasks begins anew where the state has none of it."""
        if self.encoder.conditions is not None:
            state_dict = with_new_conditions(self, state_dict)
        return super().load_state_dict(state_dict, strict)

    def prepare_for_inference_(self, cfg: Any) -> None:
        """As fairseq's, which knows no `--bf16`. BASE layers go by prices: words do not depend on their neighbours."""
        for gate in base_gates(self):
            if gate.routing.evaluation == "balanced":
                gate.routing = replace(gate.routing, evaluation="prices")
        # fairseq's hub hands over the options of the training, in which there is nothing to read a model from.
        if cfg.common.bf16 and cfg.common_eval.path is not None:
            self.bfloat16()
        super().prepare_for_inference_(cfg)

    @classmethod
    def build_with_slots(cls, cfg: Any, task: Any, slot_plans: SlotPlans, conditions: Conditions | None = None) -> Self:
        """Build through fairseq's `build_model` from flat options, with the plans of both stacks at hand."""
        options = nested_options(cfg)
        options.slot_plans, options.conditions, options.form = slot_plans, conditions, form_of(cfg)
        model: Self = TransformerModelBase.build_model.__func__(cls, options, task)
        del options.slot_plans, options.conditions, options.form
        return model

    @classmethod
    def build_encoder(cls, cfg: TransformerConfig, src_dict: Any, embed_tokens: nn.Module) -> Encoder:
        """Called by fairseq."""
        return cls.encoder_class(cfg, src_dict, embed_tokens, cfg.slot_plans, cfg.conditions)

    @classmethod
    def build_decoder(cls, cfg: TransformerConfig, tgt_dict: Any, embed_tokens: nn.Module) -> Decoder:
        """Called by fairseq."""
        has_no_source = {"no_encoder_attn": cfg.no_cross_attention}
        return cls.decoder_class(cfg, tgt_dict, embed_tokens, cfg.slot_plans, cfg.conditions, **has_no_source)

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
        """As fairseq's, with one task id per sentence (B,)."""
        both = {"src_lengths": src_lengths, "return_all_hiddens": return_all_hiddens}
        counts = TokenCounts(prev_output_tokens.numel())  # processes tell each other those of both stacks together
        encoder_out = self.encoder(src_tokens, task_ids=task_ids, token_counts=counts, **both)
        encoder_out["token_counts"] = [counts.of_next()]
        output: tuple[Tensor, dict[str, Any]] = self.decoder(
            prev_output_tokens, encoder_out, **both,
            features_only=features_only, alignment_layer=alignment_layer, alignment_heads=alignment_heads,
        )  # fmt: skip
        return output


# ---- named sizes: a sparse architecture and its dense twin share one function, and have one active size ----


def base(args: Any) -> None:
    """fairseq's `transformer`: 6+6 blocks of 512, post-norm. The model's own name gives the same."""
    base_architecture(args)


def tiny(args: Any) -> None:
    """2+2 blocks of 64: for tests and first steps on a CPU."""
    set_defaults(args, encoder_embed_dim=64, encoder_ffn_embed_dim=128, encoder_layers=2, decoder_layers=2)
    set_defaults(args, encoder_attention_heads=2, decoder_attention_heads=2, share_all_embeddings=True, num_experts=4)
    base(args)


def wmt15(args: Any) -> None:
    """The paper's WMT-15 models: 6+6 blocks, one vocabulary for all languages."""
    set_defaults(args, encoder_normalize_before=True, decoder_normalize_before=True, share_all_embeddings=True)
    base(args)


def ml50(args: Any) -> None:
    """The paper's ML-50 models: 12+12 blocks of mBART's width."""
    set_defaults(args, encoder_embed_dim=1024, encoder_ffn_embed_dim=4096, encoder_layers=12, decoder_layers=12)
    set_defaults(args, encoder_attention_heads=16, decoder_attention_heads=16)
    wmt15(args)


SIZES = {"tiny": tiny, "wmt15": wmt15, "ml50": ml50}
