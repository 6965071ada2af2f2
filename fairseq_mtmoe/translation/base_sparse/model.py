"""Sparse translation models, with experts in alternate blocks.

Implements "Tricks for Training Sparse Translation Models", §2.3 and §3. The feed-forward layer of
every alternate block of encoder and decoder is an expert layer. A model may train dense before it
is sparsified.
"""

from dataclasses import dataclass
from typing import Any, Self

from fairseq.models import register_model

from fairseq_mtmoe.conditioning.options import ConditionalOptions
from fairseq_mtmoe.core.options import names_of_tasks
from fairseq_mtmoe.core.sizes import register_sizes
from fairseq_mtmoe.core.transformer_options import FlatTransformerConfig, TranslatorForm
from fairseq_mtmoe.slots.options import ExpertOptions, RunOptions
from fairseq_mtmoe.slots.plan import check_blocks, check_experts, plan_experts
from fairseq_mtmoe.slots.sparse_model import SparseModel
from fairseq_mtmoe.translation.model.model import SIZES, Transformer, conditions_of


@dataclass
class DenseConfig(ConditionalOptions, RunOptions, TranslatorForm, FlatTransformerConfig):
    """Options of the dense twin: fairseq's transformer, conditional parts and runs."""


@dataclass
class BaseMoEConfig(
    ExpertOptions, ConditionalOptions, RunOptions, TranslatorForm, FlatTransformerConfig
):
    """Options of `--arch base_moe…`: fairseq's, experts, conditional parts and runs."""


@register_model("base_moe", dataclass=BaseMoEConfig)
class BaseMoEModel(SparseModel, Transformer):
    """A transformer whose alternate blocks hold experts."""

    @classmethod
    def build_model(cls, cfg: BaseMoEConfig, task: Any) -> Self:
        """Build the model for fairseq.

        Raises `UserError` if an option is out of range or needs a task with ids.
        """
        check_experts(cfg)
        check_blocks(cfg)
        plans = plan_experts(cfg, max(cfg.encoder_layers, cfg.decoder_layers))
        model = cls.build_with_slots(cfg, task, plans, conditions_of(cfg))
        model.remember_options(cfg)
        return model


@register_model("base_dense", dataclass=DenseConfig)
class BaseDenseModel(Transformer):
    """The dense twin of `BaseMoEModel`: fairseq's transformer in the same named sizes.

    It takes task ids, so that ensembles can mix it with sparse models. It ignores them unless parts
    are conditional.
    """

    task_names: list[str]  # indexed by task id; empty without conditional parts

    @classmethod
    def build_model(cls, cfg: DenseConfig, task: Any) -> Self:
        """Build the model for fairseq.

        Raises `UserError` if an option is out of range or needs a task with ids.
        """
        conditions = conditions_of(cfg)
        model = cls.build_with_slots(cfg, task, {}, conditions)
        model.task_names = names_of_tasks(cfg) if conditions is not None else []
        return model


register_sizes("base_moe", SIZES)
register_sizes("base_dense", SIZES)
