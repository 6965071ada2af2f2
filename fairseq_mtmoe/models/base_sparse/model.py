"""Sparse translation models: BASE, task-gated or Switch experts in alternate blocks, dense first if wanted.

Implements "Tricks for Training Sparse Translation Models", §2.3 and §3: the feed-forward layer of every alternate
block, encoder and decoder, is an expert layer; a model may train dense before it is sparsified.
"""

from dataclasses import dataclass
from typing import Any, Self

from fairseq.models import register_model

from fairseq_mtmoe.backbones.sizes import register_sizes
from fairseq_mtmoe.backbones.translation.model import SIZES, Transformer, conditions_of
from fairseq_mtmoe.options import names_of_tasks
from fairseq_mtmoe.options.conditional import ConditionalOptions
from fairseq_mtmoe.options.experts import ExpertOptions, RunOptions
from fairseq_mtmoe.options.transformer import FlatTransformerConfig, TranslatorForm
from fairseq_mtmoe.slots.plan import check_blocks, check_experts, plan_experts
from fairseq_mtmoe.slots.sparse_model import SparseModel


@dataclass
class DenseConfig(ConditionalOptions, RunOptions, TranslatorForm, FlatTransformerConfig):
    """The dense twin: fairseq's transformer options, those of conditional parts and those of runs."""


@dataclass
class BaseMoEConfig(ExpertOptions, ConditionalOptions, RunOptions, TranslatorForm, FlatTransformerConfig):
    """What `--arch base_moe…` adds to fairseq's transformer options."""


@register_model("base_moe", dataclass=BaseMoEConfig)
class BaseMoEModel(SparseModel, Transformer):
    """A transformer whose alternate blocks hold experts."""

    @classmethod
    def build_model(cls, cfg: BaseMoEConfig, task: Any) -> Self:
        """Called by fairseq. Raises `UserError` where an option is out of its range, or needs a task with ids."""
        check_experts(cfg)
        check_blocks(cfg)
        plans = plan_experts(cfg, max(cfg.encoder_layers, cfg.decoder_layers))
        model = cls.build_with_slots(cfg, task, plans, conditions_of(cfg))
        model.remember_options(cfg)
        return model


@register_model("base_dense", dataclass=DenseConfig)
class BaseDenseModel(Transformer):
    """The dense twin of `BaseMoEModel`: stock fairseq's transformer under the same names of sizes.

    It takes task ids, so that ensembles may mix it with sparse models, and ignores them unless parts are conditional.
    """

    task_names: list[str]  # behind the task ids that it tells apart

    @classmethod
    def build_model(cls, cfg: DenseConfig, task: Any) -> Self:
        """Called by fairseq. Raises `UserError` where an option is out of its range, or needs a task with ids."""
        conditions = conditions_of(cfg)
        model = cls.build_with_slots(cfg, task, {}, conditions)
        model.task_names = names_of_tasks(cfg) if conditions is not None else []
        return model


register_sizes("base_moe", SIZES)
register_sizes("base_dense", SIZES)
