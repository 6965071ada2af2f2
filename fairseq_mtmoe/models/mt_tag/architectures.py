"""The paper's encoders (§4.3), under each model's name."""

from collections.abc import Callable
from typing import Any

from fairseq.models import register_model_architecture


def minilm(args: Any) -> None:
    """MiniLM: 6 blocks of 384, 22M parameters."""
    _default(args, 6, 384, 1536, 12)


def bert_base(args: Any) -> None:
    """BERT base: 12 blocks of 768, 110M parameters."""
    _default(args, 12, 768, 3072, 12)


def bert_large(args: Any) -> None:
    """BERT large: 24 blocks of 1024, 345M parameters."""
    _default(args, 24, 1024, 4096, 16)


SIZES: dict[str, Callable[[Any], None]] = {"_minilm": minilm, "_bert_base": bert_base, "_bert_large": bert_large}


def register_sizes(model_name: str) -> None:
    """Register every `model_name_SIZE`; `model_name` itself has the sizes of the pretrained encoder."""
    for suffix, size in SIZES.items():
        register_model_architecture(model_name, model_name + suffix)(size)


def _default(args: Any, layers: int, width: int, inner: int, heads: int) -> None:
    values = {
        "encoder_layers": layers,
        "encoder_embed_dim": width,
        "encoder_ffn_embed_dim": inner,
        "encoder_attention_heads": heads,
    }
    for name, value in values.items():
        setattr(args, name, getattr(args, name, None) or value)
