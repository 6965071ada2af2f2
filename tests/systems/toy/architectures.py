"""The toy's sizes."""

from typing import Any

from fairseq.models import register_model_architecture
from fairseq.models.transformer.transformer_legacy import tiny_architecture


@register_model_architecture("toy", "toy_tiny")
def tiny(args: Any) -> None:
    """fairseq's `transformer_tiny` with four experts a layer."""
    args.num_experts = getattr(args, "num_experts", 4)
    tiny_architecture(args)
