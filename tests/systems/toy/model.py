"""The toy: a transformer whose alternate blocks hold experts behind a cosine gate."""

from __future__ import annotations

from typing import Any

from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer.transformer_legacy import tiny_architecture
from fairseq_mtmoe.toy.config import ToyConfig
from fairseq_mtmoe.toy.gates import CosineGate

from fairseq_mtmoe.core.errors import raise_invalid
from fairseq_mtmoe.slots.plan import check_blocks, check_experts, plan_experts
from fairseq_mtmoe.slots.sparse_model import SparseModel
from fairseq_mtmoe.translation.model.model import Transformer

KINDS = {"cosine": CosineGate}


@register_model("toy", dataclass=ToyConfig)
class ToyModel(SparseModel, Transformer):
    @classmethod
    def build_model(cls, cfg: ToyConfig, task: Any) -> ToyModel:
        """Called by fairseq. Raises `UserError` where one of its options is out of its range."""
        check_experts(cfg, KINDS)
        check_blocks(cfg)
        if cfg.gate_sharpness <= 0:
            raise_invalid("--gate-sharpness", "above 0", cfg.gate_sharpness)
        settings = {"cosine": {"sharpness": cfg.gate_sharpness}}
        plans = plan_experts(cfg, max(cfg.encoder_layers, cfg.decoder_layers), KINDS, settings)
        model = cls.build_with_slots(cfg, task, plans)
        model.remember_options(cfg)
        return model


@register_model_architecture("toy", "toy_tiny")
def tiny(args: Any) -> None:
    """fairseq's `transformer_tiny` with four experts a layer."""
    args.num_experts = getattr(args, "num_experts", 4)
    tiny_architecture(args)
