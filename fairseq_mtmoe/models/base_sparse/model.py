"""Sparse translation models: BASE, task-gated or Switch experts in alternate blocks, dense first if wanted.

Implements "Tricks for Training Sparse Translation Models", §2.3 and §3: the feed-forward layer of every alternate
block, encoder and decoder, is an expert layer; a model may train dense before it is sparsified.
"""

from typing import Any, Dict, List, Optional

from fairseq.models import register_model
from torch import Tensor

from fairseq_mtmoe.backbones.translation.model import SparseTransformer
from fairseq_mtmoe.checkpoints import mismatch
from fairseq_mtmoe.errors import UserError, must_be
from fairseq_mtmoe.models.base_sparse.architectures import register_sizes
from fairseq_mtmoe.models.base_sparse.config import BaseMoEConfig, DenseConfig
from fairseq_mtmoe.moe import BaseRouting
from fairseq_mtmoe.moe.gates import EVALUATIONS, TRAININGS
from fairseq_mtmoe.options.run import run_option
from fairseq_mtmoe.options.transformer import nested_options
from fairseq_mtmoe.slots import SlotPlan, expert_layers, expert_slots

EXPERTS = ".moe.experts."
GATES = ("base", "task", "switch")
COMBINES = ("preserving", "paper")


@register_model("base_dense", dataclass=DenseConfig)
class BaseDenseModel(SparseTransformer):
    """The dense twin of `BaseMoEModel`: stock fairseq's transformer under the same names of sizes.

    It takes task ids and does nothing with them, so that ensembles may mix it with sparse models.
    """

    @classmethod
    def build_model(cls, cfg: DenseConfig, task: Any) -> "BaseDenseModel":
        """Called by fairseq."""
        return cls.build_sparse(nested_options(cfg), task, slot_plans={})


@register_model("base_moe", dataclass=BaseMoEConfig)
class BaseMoEModel(SparseTransformer):
    """A transformer whose alternate blocks hold experts.

    `task_names` are the names behind the task ids that it was built with (none: it was built without ids).
    """

    task_names: List[str]
    dense_updates: int

    @classmethod
    def build_model(cls, cfg: BaseMoEConfig, task: Any) -> "BaseMoEModel":
        """Called by fairseq.

        Raises:
            UserError: an expert option is out of its range, or a task gate is asked for under a task without ids.
        """
        task_names = cfg.task_names.split(",") if cfg.task_names else []
        options = nested_options(cfg)
        check_options(cfg, task_names)
        model = cls.build_sparse(options, task, plan_slots(cfg, len(task_names)))
        model.task_names = task_names
        model.dense_updates = cfg.dense_updates
        return model

    @property
    def is_dense(self) -> bool:
        """Whether the experts are still to come."""
        return not expert_layers(self)

    def sparsify(self) -> None:
        """Make every slot's experts copies of its feed-forward layer; the gates start at random."""
        for slot in expert_slots(self).values():
            slot.sparsify()

    def load_state_dict(
        self, state_dict: Dict[str, Tensor], strict: bool = True, model_cfg: Any = None, args: Any = None
    ) -> Any:
        """As fairseq's; a model that starts dense becomes sparse first when the checkpoint is.

        Of all experts' parameters a process takes those of its own.

        Raises:
            UserError: the checkpoint is dense and the model never was, or their numbers of experts differ.
        """
        self.adapt_to(state_dict)
        own = {path: layer.experts.placement for path, layer in expert_layers(self).items()}
        mine = {
            key: own[key.split(EXPERTS)[0]].local(value) if EXPERTS in key else value
            for key, value in state_dict.items()
        }
        return super().load_state_dict(mine, strict)

    def adapt_to(self, state_dict: Dict[str, Tensor]) -> None:
        """Become sparse if the checkpoint is; raises a UserError where it cannot be this model's."""
        slots = expert_slots(self)
        saved = {
            path: len(state_dict[f"{path}.moe.experts.fc1_weight"])
            for path in slots
            if f"{path}.moe.experts.fc1_weight" in state_dict
        }
        elsewhere = {key.split(".moe.")[0] for key in state_dict if ".moe." in key} ^ set(saved)
        if elsewhere or (saved and len(saved) < len(slots)):
            if self.is_dense:
                self.sparsify()  # so that what is compared has experts, too; nobody trains this model
            refusal = mismatch.refusal(self, state_dict)
            assert refusal is not None
            raise refusal
        if not saved:
            if not self.is_dense:
                raise UserError(
                    "`--dense-updates` must be above 0 for a dense checkpoint to become sparse in training, but is 0 "
                    "instead; `mtmoe upcycle` makes a sparse checkpoint of it."
                )
            return
        if self.is_dense:
            self.sparsify()
        for path, layer in expert_layers(self).items():
            placement = layer.experts.placement
            if saved[path] not in (placement.num_experts, placement.count):
                must_be("--num-experts", f"{saved[path]} as in the checkpoint's {path}", placement.num_experts)


def check_options(cfg: BaseMoEConfig, task_names: List[str]) -> None:
    """Raise the `UserError` that names the first expert option out of its range."""
    if cfg.num_experts < 1:
        must_be("--num-experts", "at least 1", cfg.num_experts)
    if cfg.expert_interval < 1:
        must_be("--expert-interval", "at least 1", cfg.expert_interval)
    if cfg.dense_updates < 0:
        must_be("--dense-updates", "at least 0", cfg.dense_updates)
    if cfg.expert_combine not in COMBINES:
        must_be("--expert-combine", f"one of {', '.join(COMBINES)}", cfg.expert_combine)
    for name, choices in (("base_evaluation", EVALUATIONS), ("base_training", TRAININGS)):
        if _option(cfg, name) not in choices:
            must_be(f"--{name.replace('_', '-')}", f"one of {', '.join(choices)}", _option(cfg, name))
    memory = _option(cfg, "price_memory")
    if not isinstance(memory, (int, float)) or not 0 <= memory < 1:
        must_be("--price-memory", "from 0 to below 1", memory)
    gates = cfg.expert_gates.split(",")
    if any(gate not in GATES for gate in gates):
        must_be("--expert-gates", f"one of {', '.join(GATES)}, or a comma-separated pattern of them", cfg.expert_gates)
    if "task" in gates and not task_names:
        raise UserError(
            f"`--expert-gates {cfg.expert_gates}` needs a task that gives each sentence a task id, such as "
            "`--task translation_heated`, but this one gives none."
        )
    for name in ("cross_self_attention", "quant_noise_pq", "base_layers"):
        if getattr(cfg, name, False):
            must_be(f"--{name.replace('_', '-')}", "off in a model with experts", getattr(cfg, name))
    if min(cfg.encoder_layers, cfg.decoder_layers) < cfg.expert_interval:
        must_be("--expert-interval", "at most the number of blocks of either stack", cfg.expert_interval)


def _option(cfg: Any, name: str) -> Any:
    """An option that checkpoints of before 0.1.2 do not have."""
    return getattr(cfg, name, getattr(BaseMoEConfig, name))


def plan_slots(cfg: BaseMoEConfig, num_tasks: int) -> Dict[int, SlotPlan]:
    """Which block gets which experts: the last of every `expert_interval` blocks, the gates in the pattern's order."""
    gates = cfg.expert_gates.split(",")
    depth = max(cfg.encoder_layers, cfg.decoder_layers)
    base = BaseRouting(_option(cfg, "base_training"), _option(cfg, "base_evaluation"), _option(cfg, "price_memory"))
    indices = range(cfg.expert_interval - 1, depth, cfg.expert_interval)
    return {
        index: SlotPlan(
            gate=gates[order % len(gates)],
            num_experts=cfg.num_experts,
            combine=cfg.expert_combine,
            num_tasks=num_tasks,
            starts_dense=cfg.dense_updates > 0,
            base=base,
            shuffles_tokens=not run_option(cfg, "no_token_shuffle"),
            timeout=run_option(cfg, "distributed_timeout"),
        )
        for order, index in enumerate(indices)
    }


register_sizes("base_moe")
register_sizes("base_dense")


def task_names_of(model: Any) -> Optional[List[str]]:
    """The task names that a model was built with, or None where it tells no tasks apart."""
    return getattr(model, "task_names", None) or None
