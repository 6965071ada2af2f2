"""MT-TaG: a pretrained encoder with experts and a gate for each task.

Implements "Sparsely Activated Mixture-of-Experts are Robust Multi-Task Learners", §3. Experts start
as exact copies of the pretrained layers (§4.3). Each task has its own gate (equations 3-6), or all
tasks share one (MT-Switch).
"""

from dataclasses import dataclass, replace
from typing import Any, Optional, Self

from fairseq.dataclass import FairseqDataclass
from fairseq.models import register_model

from fairseq_mtmoe.conditioning.options import EncoderConditionalOptions
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.options import option
from fairseq_mtmoe.core.sizes import register_sizes
from fairseq_mtmoe.core.transformer_options import EncoderOptions
from fairseq_mtmoe.nlu.bert.heads import heads_from_text
from fairseq_mtmoe.nlu.bert.model import (
    BASE,
    LARGE,
    MINILM,
    EncoderModel,
    build_encoder,
    encoder_config,
)
from fairseq_mtmoe.slots.options import EXPERT_GATES, ExpertOptions, RunOptions
from fairseq_mtmoe.slots.plan import check_experts, plan_experts
from fairseq_mtmoe.slots.sparse_model import SparseModel


@dataclass
class MTDenseConfig(RunOptions, EncoderOptions, FairseqDataclass):
    """Options of a dense encoder with a head for each task."""


@dataclass
class MTTaGConfig(
    EncoderConditionalOptions, ExpertOptions, RunOptions, EncoderOptions, FairseqDataclass
):
    """Options of MT-TaG.

    By default every block has four experts and a gate for each task.
    """

    num_experts: int = option(
        4, "number of experts per expert layer, which start as copies of the feed-forward layer"
    )
    expert_gates: str = option("task", EXPERT_GATES)
    expert_interval: int = option(1, "put experts into every Nth block")
    reuse_gate: Optional[str] = option(  # noqa: UP045  # fairseq reads it
        None,
        "initialize the gates of all tasks (or experts of fixed gates) from the checkpoint's of "
        "this task, or from the mean of several, such as mnli,rte, if the checkpoint has other "
        "tasks than the run (default: tasks in the checkpoint keep their gates, others start at "
        "random)",
    )


@dataclass
class MTSwitchConfig(MTTaGConfig):
    """Options of MT-Switch. By default all tasks share one gate."""

    expert_gates: str = option("switch", EXPERT_GATES)


@register_model("mt_dense", dataclass=MTDenseConfig)
class MTDenseModel(EncoderModel):
    """MT-Dense, the dense twin of MT-TaG and MT-Switch; with one task, Single-Task."""

    @classmethod
    def build_model(cls, cfg: MTDenseConfig, task: Any) -> Self:
        """Build the model for fairseq.

        Raises `UserError` if a size is wrong or the task gives no encoder.
        """
        return cls(build_encoder(cfg, task), heads_from_text(cfg.heads))


@register_model("mt_tag", dataclass=MTTaGConfig)
class MTTaGModel(SparseModel, EncoderModel):
    """An encoder with experts that copy its feed-forward layers.

    It becomes sparse at the start or after dense updates.
    """

    gate_lr_factor = 30.0  # the learning rates of fine-tuning leave gates near their random start

    @classmethod
    def build_model(cls, cfg: MTTaGConfig, task: Any) -> Self:
        """Build the model for fairseq.

        Raises `UserError` if a size or an expert option is wrong.
        """
        num_blocks = encoder_config(cfg).num_hidden_layers
        check_experts(cfg)
        if cfg.reuse_gate and task.pretrained is not None and not task.begins_with_checkpoint:
            raise UserError(
                "`--reuse-gate` requires a checkpoint that has the gate: give it as "
                "`--finetune-from-model`."
            )
        plans = plan_experts(cfg, num_blocks)
        # `sparsify` copies them.
        plans = {index: replace(plan, starts_dense=True) for index, plan in plans.items()}
        model = cls(build_encoder(cfg, task, plans), heads_from_text(cfg.heads))
        model.remember_options(cfg)
        model.reuse_gate = cfg.reuse_gate
        if not cfg.dense_updates:
            model.sparsify()
        return model


@register_model("mt_switch", dataclass=MTSwitchConfig)
class MTSwitchModel(MTTaGModel):
    """MT-Switch: MT-TaG with one gate for all tasks."""


for name in ("mt_dense", "mt_tag", "mt_switch"):
    register_sizes(name, {"minilm": MINILM, "bert_base": BASE, "bert_large": LARGE})  # §4.3
