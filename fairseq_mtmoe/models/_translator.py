"""Named sizes of translators. A sparse architecture and its dense twin share one function, and have one active size."""

from collections.abc import Callable
from typing import Any

from fairseq.models import register_model_architecture
from fairseq.models.transformer.transformer_legacy import base_architecture


def _default(args: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(args, name, getattr(args, name, value))


def base(args: Any) -> None:
    """fairseq's `transformer`: 6+6 blocks of 512, post-norm. The model's own name gives the same."""
    base_architecture(args)


def tiny(args: Any) -> None:
    """2+2 blocks of 64: for tests and first steps on a CPU."""
    _default(
        args,
        encoder_embed_dim=64,
        encoder_ffn_embed_dim=128,
        encoder_layers=2,
        encoder_attention_heads=2,
        decoder_layers=2,
        decoder_attention_heads=2,
        share_all_embeddings=True,
    )
    _default(args, num_experts=4)
    base(args)


def wmt15(args: Any) -> None:
    """The paper's WMT-15 models: 6+6 blocks, one vocabulary for all languages."""
    _default(args, encoder_normalize_before=True, decoder_normalize_before=True, share_all_embeddings=True)
    base(args)


def ml50(args: Any) -> None:
    """The paper's ML-50 models: 12+12 blocks of mBART's width."""
    _default(
        args,
        encoder_layers=12,
        decoder_layers=12,
        encoder_embed_dim=1024,
        encoder_ffn_embed_dim=4096,
        encoder_attention_heads=16,
        decoder_attention_heads=16,
    )
    wmt15(args)


SIZES: dict[str, Callable[[Any], None]] = {"_tiny": tiny, "_wmt15": wmt15, "_ml50": ml50}


def register_sizes(model_name: str) -> None:
    """Register every `model_name_SIZE`; fairseq registers `model_name` itself, with the options' defaults."""
    for suffix, size in SIZES.items():
        register_model_architecture(model_name, model_name + suffix)(size)
