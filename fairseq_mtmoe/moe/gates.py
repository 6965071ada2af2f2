"""Which expert each token goes to, and how strongly: three gates, one result.

BASE (balanced in training, greedy in evaluation) of "Tricks for Training Sparse Translation Models", the task-aware
gate of MT-TaG (equations 3-6), and Switch's single softmax gate. All of them compute in float32 whatever the model's
type, so that half precision does not decide by rounding (Switch Transformer, §2.4).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_mtmoe.errors import must_be
from fairseq_mtmoe.moe.assignment import balanced_assignment
from fairseq_mtmoe.moe.dispatch import combine, dispatch
from fairseq_mtmoe.moe.experts import grouped_linear

SOFTMAX_GATE_STD = 0.001  # MT-TaG: gates start from N(0, 0.001²)


@dataclass(frozen=True)
class Routing:
    """What every gate returns.

    Attributes:
        expert_T: each token's expert, (T,), long.
        gate_T: the weight of its output, (T,), float32, positive; gradients reach the gate and the tokens through it.
        neutral: the value of `gate_T` while the gate is undecided (all logits 0).
        balance_loss: Switch's load-balancing loss, 1 when the load is even, where the gate defines one.
    """

    expert_T: Tensor
    gate_T: Tensor
    neutral: float
    balance_loss: Tensor | None = None


class Gate(nn.Module, ABC):
    """What the gates share: their sizes. `num_tasks` is 0 where tasks are not told apart."""

    weight: nn.Parameter

    def __init__(self, num_experts: int, hidden_size: int, num_tasks: int = 0) -> None:
        super().__init__()
        if num_experts < 1:
            must_be("num_experts", "at least 1", num_experts)
        self.num_experts = num_experts
        self.hidden_size = hidden_size
        self.num_tasks = num_tasks

    def forward(self, hidden_TH: Tensor, task_T: Tensor | None = None) -> Routing:
        """Route tokens (T, H) of the tasks (T,), in float32 also under autocast.

        Raises:
            UserError: the gate needs task ids, and there are none or unknown ones.
        """
        with torch.autocast(hidden_TH.device.type, enabled=False):
            return self.route(hidden_TH.float(), task_T)

    @abstractmethod
    def route(self, hidden_TH: Tensor, task_T: Tensor | None) -> Routing:
        """What a gate defines: the routing of float32 tokens (T, H)."""

    def extra_repr(self) -> str:
        """The sizes, for printing a model."""
        return f"num_experts={self.num_experts}, hidden_size={self.hidden_size}, num_tasks={self.num_tasks}"


class BaseGate(Gate):
    """BASE: experts get equal shares of a training batch; in evaluation each token goes to the expert it likes best.

    The choice has no gradient; `gate_T = sigmoid(h · w_e)` has. The mode follows `self.training` and nothing else.
    """

    def __init__(self, num_experts: int, hidden_size: int, num_tasks: int = 0) -> None:
        super().__init__(num_experts, hidden_size, num_tasks)
        self.weight = nn.Parameter(torch.empty(num_experts, hidden_size))
        nn.init.orthogonal_(self.weight, gain=0.1)

    def route(self, hidden_TH: Tensor, task_T: Tensor | None) -> Routing:
        """Balanced in training, greedy in evaluation; `task_T` is not looked at."""
        scores_TN = F.linear(hidden_TH, self.weight.float())
        fixed_TN = scores_TN.detach()
        expert_T = balanced_assignment(fixed_TN) if self.training else fixed_TN.argmax(1)
        gate_T = scores_TN.gather(1, expert_T.unsqueeze(1)).squeeze(1).sigmoid()
        return Routing(expert_T, gate_T, neutral=0.5)


class TaskGate(Gate):
    """MT-TaG: one softmax gate per task, top-1."""

    def __init__(self, num_experts: int, hidden_size: int, num_tasks: int) -> None:
        super().__init__(num_experts, hidden_size, num_tasks)
        if num_tasks < 1:
            must_be("num_tasks", "at least 1 for task gates", num_tasks)
        self.weight = nn.Parameter(torch.empty(num_tasks, num_experts, hidden_size))
        nn.init.normal_(self.weight, std=SOFTMAX_GATE_STD)

    def route(self, hidden_TH: Tensor, task_T: Tensor | None) -> Routing:
        """The most probable expert of each token's task; raises UserError without task ids or with unknown ones."""
        task_T = self._checked(task_T)
        # The gates are a bank of linear maps: tokens are dispatched to their task's, absent tasks cost nothing.
        grouped, plan = dispatch(hidden_TH, task_T, self.num_tasks)
        logits_TN = combine(grouped_linear(grouped, plan.counts, self.weight.float(), None), plan)
        gate_T, expert_T = logits_TN.softmax(1).max(1)
        return Routing(expert_T, gate_T, neutral=1 / self.num_experts)

    def _checked(self, task_T: Tensor | None) -> Tensor:
        if task_T is None:
            must_be("task_ids", "one task id per sentence for task gates (use a task that gives them)", None)
        wrong = task_T[(task_T < 0) | (task_T >= self.num_tasks)]
        if len(wrong):
            must_be("task_ids", f"from 0 to {self.num_tasks - 1}, the tasks that the gate knows", int(wrong[0]))
        return task_T


class SwitchGate(Gate):
    """Switch: one softmax gate for all tasks, top-1 (MT-TaG's MT-Switch)."""

    def __init__(self, num_experts: int, hidden_size: int, num_tasks: int = 0) -> None:
        super().__init__(num_experts, hidden_size, num_tasks)
        self.weight = nn.Parameter(torch.empty(num_experts, hidden_size))
        nn.init.normal_(self.weight, std=SOFTMAX_GATE_STD)

    def route(self, hidden_TH: Tensor, task_T: Tensor | None) -> Routing:
        """The most probable expert; `task_T` is not looked at.

        The balance loss is `N · Σ_e f_e · P_e`, with `f_e` the share of tokens that went to expert e and `P_e` the mean
        probability that the gate gave to it (Switch Transformer, eq. 4-6); 0 without tokens.
        """
        share_TN = F.linear(hidden_TH, self.weight.float()).softmax(1)
        gate_T, expert_T = share_TN.max(1)
        num_tokens = max(len(hidden_TH), 1)
        load_N = torch.bincount(expert_T, minlength=self.num_experts) / num_tokens
        loss = self.num_experts * (load_N * (share_TN.sum(0) / num_tokens)).sum()
        return Routing(expert_T, gate_T, neutral=1 / self.num_experts, balance_loss=loss)


def build_gate(kind: str, num_experts: int, hidden_size: int, num_tasks: int = 0) -> Gate:
    """The gate of a kind: `base`, `task` or `switch`.

    Raises:
        UserError: an unknown kind, no expert, or a task gate without tasks.
    """
    kinds: dict[str, type[Gate]] = {"base": BaseGate, "task": TaskGate, "switch": SwitchGate}
    if kind not in kinds:
        must_be("gate", f"one of {', '.join(kinds)}", kind)
    return kinds[kind](num_experts, hidden_size, num_tasks)
