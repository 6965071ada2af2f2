"""MT-TaG: a pretrained encoder whose feed-forward layers become experts, with a gate for each task.

Implements "Sparsely Activated Mixture-of-Experts are Robust Multi-Task Learners", §3: experts are exact copies of the
pretrained layers (§4.3), gates are the tasks' own (equations 3-6) or one for all (MT-Switch).
"""

from dataclasses import dataclass, replace
from typing import Any, Optional, Self

from fairseq.dataclass import FairseqDataclass
from fairseq.models import register_model

from fairseq_mtmoe.backbones.bert.heads import heads_from_text
from fairseq_mtmoe.backbones.bert.model import BASE, LARGE, MINILM, EncoderModel, build_encoder, encoder_config
from fairseq_mtmoe.backbones.sizes import register_sizes
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.options import option
from fairseq_mtmoe.options.conditional import EncoderConditionalOptions
from fairseq_mtmoe.options.experts import ExpertOptions, RunOptions
from fairseq_mtmoe.options.transformer import EncoderOptions
from fairseq_mtmoe.slots.plan import check_experts, plan_experts
from fairseq_mtmoe.slots.sparse_model import SparseModel


@dataclass
class MTDenseConfig(RunOptions, EncoderOptions, FairseqDataclass):
    """A dense encoder with a head for each task: MT-Dense, or Single-Task where there is one."""


@dataclass
class MTTaGConfig(EncoderConditionalOptions, ExpertOptions, RunOptions, EncoderOptions, FairseqDataclass):
    """MT-TaG's defaults: in every block four experts and a gate for each task."""

    num_experts: int = option(4, "experts per block, copies of its feed-forward layer")
    expert_gates: str = option("task", "gate of the experts: task (MT-TaG), switch or base")
    expert_interval: int = option(1, "every how many blocks one has experts")
    reuse_gate: Optional[str] = option(  # noqa: UP045  # fairseq reads it
        None,
        "the gates of tasks in the checkpoint with which a run of other tasks begins: one for all, or the mean of "
        "several, such as mnli,rte (default: a task that the checkpoint knows keeps its own, another one begins at "
        "random)",
    )


@dataclass
class MTSwitchConfig(MTTaGConfig):
    """MT-Switch's: one gate for all tasks."""

    expert_gates: str = option("switch", "gate of the experts: task, switch or base")


@register_model("mt_dense", dataclass=MTDenseConfig)
class MTDenseModel(EncoderModel):
    """MT-Dense; with one task, Single-Task. The dense twin of the others."""

    @classmethod
    def build_model(cls, cfg: MTDenseConfig, task: Any) -> Self:
        """Called by fairseq. Raises `UserError` where a size is wrong, or nothing says which."""
        return cls(build_encoder(cfg, task), heads_from_text(cfg.heads))


@register_model("mt_tag", dataclass=MTTaGConfig)
class MTTaGModel(SparseModel, EncoderModel):
    """An encoder whose blocks hold experts: copies of its own feed-forward layers, at once or after dense updates."""

    gate_lr_factor = 30.0  # at the rate of fine-tuning, gates stay near their random start

    @classmethod
    def build_model(cls, cfg: MTTaGConfig, task: Any) -> Self:
        """Called by fairseq. Raises `UserError` where a size or an expert option is wrong."""
        num_blocks = encoder_config(cfg).num_hidden_layers
        check_experts(cfg)
        if cfg.reuse_gate and task.pretrained is not None and not task.begins_with_checkpoint:
            raise UserError(
                "`--reuse-gate` must come with a checkpoint that has the gate, such as one of `--finetune-from-model`, "
                "but there is none."
            )
        plans = plan_experts(cfg, num_blocks)
        plans = {index: replace(plan, starts_dense=True) for index, plan in plans.items()}  # to be copied below
        model = cls(build_encoder(cfg, task, plans), heads_from_text(cfg.heads))
        model.remember_options(cfg)
        model.reuse_gate = cfg.reuse_gate
        if not cfg.dense_updates:
            model.sparsify()
        return model


@register_model("mt_switch", dataclass=MTSwitchConfig)
class MTSwitchModel(MTTaGModel):
    """The same with one gate for all tasks."""


for name in ("mt_dense", "mt_tag", "mt_switch"):
    register_sizes(name, {"minilm": MINILM, "bert_base": BASE, "bert_large": LARGE})  # §4.3
