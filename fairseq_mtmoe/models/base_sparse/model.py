"""Sparse translation models: BASE, task-gated or Switch experts in alternate blocks, dense first if wanted.

Implements "Tricks for Training Sparse Translation Models", §2.3 and §3: the feed-forward layer of every alternate
block, encoder and decoder, is an expert layer; a model may train dense before it is sparsified.
"""

from __future__ import annotations

from typing import Any

from fairseq.models import register_model

from fairseq_mtmoe.backbones.translation.conditional import conditions_of
from fairseq_mtmoe.backbones.translation.model import Transformer, register_sizes
from fairseq_mtmoe.models.base_sparse.config import BaseMoEConfig, DenseConfig
from fairseq_mtmoe.options import names_of_tasks
from fairseq_mtmoe.options.transformer import nested_options
from fairseq_mtmoe.slots.plan import check_blocks, check_experts, plan_experts
from fairseq_mtmoe.slots.sparse_model import SparseModel


@register_model("base_moe", dataclass=BaseMoEConfig)
class BaseMoEModel(SparseModel, Transformer):
    """A transformer whose alternate blocks hold experts."""

    @classmethod
    def build_model(cls, cfg: BaseMoEConfig, task: Any) -> BaseMoEModel:
        """Called by fairseq.

        Raises:
            UserError: an expert option, or one of conditional parts, is out of its range, or a task gate or such a part
                is asked for under a task without ids.
        """
        options = nested_options(cfg)
        check_experts(cfg)
        check_blocks(cfg)
        plans = plan_experts(cfg, max(cfg.encoder_layers, cfg.decoder_layers))
        model = cls.build_with_slots(options, task, plans, conditions_of(cfg))
        model.remember_options(cfg)
        return model


@register_model("base_dense", dataclass=DenseConfig)
class BaseDenseModel(Transformer):
    """The dense twin of `BaseMoEModel`: stock fairseq's transformer under the same names of sizes.

    It takes task ids and does nothing with them, so that ensembles may mix it with sparse models, unless parts of it
    are conditional.

    Attributes:
        task_names: the names behind the task ids that it tells apart; none where it does not.
    """

    task_names: list[str]

    @classmethod
    def build_model(cls, cfg: DenseConfig, task: Any) -> BaseDenseModel:
        """Called by fairseq.

        Raises:
            UserError: an option of conditional parts is out of its range, or the task gives no ids.
        """
        conditions = conditions_of(cfg)
        model = cls.build_with_slots(nested_options(cfg), task, {}, conditions)
        model.task_names = names_of_tasks(cfg) if conditions is not None else []
        return model


register_sizes("base_moe")
register_sizes("base_dense")
