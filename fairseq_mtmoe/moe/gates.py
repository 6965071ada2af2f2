"""Four gates, which choose an expert and a weight for each token.

The gate of BASE layers (Lewis et al. 2021) as in "Tricks for Training Sparse Translation Models",
except that evaluation routes by the prices of training; the task-aware gate of MT-TaG (equations
3-6); Switch's single softmax gate; and a fixed gate with one expert per task. All compute in
float32, so that rounding to half precision changes no decision (Switch Transformer, §2.4).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_mtmoe.core.errors import raise_invalid
from fairseq_mtmoe.moe.assignment import assigned
from fairseq_mtmoe.moe.assignment.running_prices import MEMORY, RunningPrices
from fairseq_mtmoe.moe.device_kind import device_kind
from fairseq_mtmoe.moe.dispatch import LocalDispatcher
from fairseq_mtmoe.moe.grouped_matmul.operators import grouped_linear
from fairseq_mtmoe.moe.parallel.collectives import CommRecord
from fairseq_mtmoe.moe.parallel.token_shuffle import TokenCounts, TokenShuffle
from fairseq_mtmoe.moe.stats import real_tokens, tasks_of_tokens

SOFTMAX_GATE_STD = 0.001  # MT-TaG: gates start from N(0, 0.001²)
# Up to this number of scores per token, all tasks' gates are computed, though one is needed.
DENSE_LIMIT = 64
# Up to this number of values, 256 MiB, gates are copied for each sentence on a GPU.
MOST_COPIED = 2**26
WITHOUT_TASKS = "one task id per sentence for task gates (use a task that gives them)"
EVALUATIONS = ("prices", "greedy", "balanced")


@dataclass(frozen=True)
class Tokens:
    """The tokens that a gate routes.

    Attributes:
        hidden_TH: the residual stream, finite also at padding.
        task_B: the task of each token (B = T), or of each sentence, long: token t is of sentence
            t modulo B.
        padding_T: True at padding, which is not routed.
        counts: shared by the layers that see the same tokens; None for a single layer.
    """

    hidden_TH: Tensor
    task_B: Tensor | None = None
    padding_T: Tensor | None = None
    counts: TokenCounts | None = None


@dataclass
class Routing:
    """The result of a gate.

    Attributes:
        expert_T: each token's expert, (T,), long; N for padding.
        gate_T: the weight of its output, (T,), float32, positive; gradients reach the gate and
            the tokens through it.
        uniform_gate: the value of `gate_T` if the gate is undecided (all logits 0).
        balance_loss: Switch's load-balancing loss, 1 if the load is even; None if the gate
            defines none.
        max_rows: upper bound of an expert's number of tokens, if known without synchronisation.
        arriving_PE: number of rows that each rank has for each expert of this rank, if the
            assignment returned it.
    """

    expert_T: Tensor
    gate_T: Tensor
    uniform_gate: float
    balance_loss: Tensor | None = None
    max_rows: int | None = None
    arriving_PE: Tensor | None = None


class Gate(nn.Module, ABC):
    """Base class of gates; `num_tasks` is 0 if the model takes no task ids.

    Attributes:
        needs_tasks: whether routing needs task ids.
        routes_alone: whether the routing of a token is independent of other tokens.
        is_learned: whether it has a `weight`, whose scores decide and scale; otherwise the layer
            has no `blend`.
    """

    needs_tasks: ClassVar[bool] = False
    routes_alone: ClassVar[bool] = False
    is_learned: ClassVar[bool] = True
    weight: nn.Parameter

    def __init__(self, num_experts: int, hidden_size: int, num_tasks: int = 0) -> None:
        super().__init__()
        assert num_experts >= 1
        self.num_experts = num_experts
        self.hidden_size = hidden_size
        self.num_tasks = num_tasks
        self.comm = CommRecord()

    def forward(
        self,
        hidden_TH: Tensor,
        task_B: Tensor | None = None,
        padding_T: Tensor | None = None,
        counts: TokenCounts | None = None,
    ) -> Routing:
        """Route tokens (see `Tokens`), in float32 also under autocast."""
        with torch.autocast(hidden_TH.device.type, enabled=False):
            routing = self.route(Tokens(hidden_TH.float(), task_B, padding_T, counts))
        if padding_T is not None:
            routing.expert_T = routing.expert_T.masked_fill(padding_T, self.num_experts)
        return routing

    def scores(self, weight: Tensor, tokens: Tokens) -> Tensor:
        """Return scores, (T, N), float32, for a value of the gate's weight."""
        return F.linear(tokens.hidden_TH, weight.float())

    @abstractmethod
    def route(self, tokens: Tokens) -> Routing:
        """Return the routing of float32 tokens; its values at padding are ignored."""

    def extra_repr(self) -> str:
        """Return the sizes for `repr`."""
        return (
            f"num_experts={self.num_experts}, hidden_size={self.hidden_size}, "
            f"num_tasks={self.num_tasks}"
        )


class BaseGate(Gate):
    """BASE: balanced assignment in training; evaluation routes by running prices.

    The choice is not differentiable. Gradients flow through `gate_T = sigmoid(h · w_e)`. The mode
    depends only on `self.training`.

    Attributes:
        evaluation: how evaluation routes. `prices`: by score minus running price, as in training;
            `greedy`: by score, as published; `balanced`: equal loads in this rank's batch.
        shuffle: shuffles tokens over all ranks before the assignment; None: each rank assigns its
            own tokens.
    """

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        num_tasks: int = 0,
        evaluation: str = "prices",
        memory: float = MEMORY,
    ) -> None:
        super().__init__(num_experts, hidden_size, num_tasks)
        assert evaluation in EVALUATIONS
        self.evaluation = evaluation
        self.weight = nn.Parameter(torch.empty(num_experts, hidden_size))
        self.prices = RunningPrices(num_experts, memory)
        self.shuffle: TokenShuffle | None = None
        nn.init.orthogonal_(self.weight, gain=0.1)

    def route(self, tokens: Tokens) -> Routing:
        """Route by balanced assignment, prices or the best score; gates are sigmoids."""
        scores_TN = self.scores(self.weight, tokens)
        fixed_TN = scores_TN.detach()
        max_rows = arriving_PE = None
        if self.training or self.evaluation == "balanced":
            expert_T, arriving_PE = self._balanced(fixed_TN, tokens)
            if arriving_PE is None:
                max_rows = -(-len(scores_TN) // self.num_experts)
        elif self.evaluation == "prices":
            expert_T = (fixed_TN - self.prices.mean).argmax(1)
        else:
            expert_T = fixed_TN.argmax(1)
        chosen_T = expert_T.clamp(max=self.num_experts - 1)  # padding has no expert
        gate_T = scores_TN.gather(1, chosen_T.unsqueeze(1)).squeeze(1).sigmoid()
        return Routing(
            expert_T, gate_T, uniform_gate=0.5, max_rows=max_rows, arriving_PE=arriving_PE
        )

    def _balanced(self, scores_TN: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor | None]:
        """Return the balanced assignment and `arriving_PE`.

        It starts from the running prices. Training records the prices.
        """
        arriving_PE = None
        padding_T = tokens.padding_T
        assign = partial(assigned, start_N=self.prices.start)
        if self.shuffle is None or not self.training:
            expert_T, price_N = assign(scores_TN, padding_T)
            num_tokens = real_tokens(scores_TN, padding_T).sum()
        else:
            shuffled = self.shuffle(scores_TN, padding_T, assign, self.comm, tokens.counts)
            expert_T, arriving_PE, price_N, num_tokens = shuffled
        if self.training:
            self.prices.record(price_N, num_tokens)
        return expert_T, arriving_PE


class TaskGate(Gate):
    """MT-TaG: one softmax gate per task, top-1."""

    needs_tasks = True
    routes_alone = True

    def __init__(self, num_experts: int, hidden_size: int, num_tasks: int) -> None:
        super().__init__(num_experts, hidden_size, num_tasks)
        assert num_tasks >= 1
        self.weight = nn.Parameter(torch.empty(num_tasks, num_experts, hidden_size))
        nn.init.normal_(self.weight, std=SOFTMAX_GATE_STD)

    def route(self, tokens: Tokens) -> Routing:
        """Route each token to the best expert of its task; gates are the softmax."""
        gate_T, expert_T = self.scores(self.weight, tokens).softmax(1).max(1)
        return Routing(expert_T, gate_T, uniform_gate=1 / self.num_experts)

    def scores(self, weight: Tensor, tokens: Tokens) -> Tensor:
        """Return scores, (T, N), by the gate of each token's task.

        On a CPU, all tasks' scores are computed if few, else tokens are dispatched to gates.
        """
        weight = weight.float()
        hidden_TH = tokens.hidden_TH
        task_B = checked_tasks(tokens, self.num_tasks)
        copied = len(task_B) * self.num_experts * self.hidden_size
        if not device_kind(hidden_TH).host_can_read and copied <= MOST_COPIED:
            return _scores_by_sentence(weight, hidden_TH, task_B.clamp(0, self.num_tasks - 1))
        task_T = tasks_of_tokens(task_B, len(hidden_TH))
        if self.num_tasks * self.num_experts <= DENSE_LIMIT:
            logits_TKN = F.linear(hidden_TH, weight.flatten(0, 1)).view(-1, *weight.shape[:2])
            task_T11 = task_T.clamp(max=self.num_tasks - 1).view(-1, 1, 1)
            task_T1N = task_T11.expand(-1, 1, self.num_experts)
            return logits_TKN.gather(1, task_T1N).squeeze(1)
        if tokens.padding_T is not None:
            task_T = task_T.masked_fill(tokens.padding_T, self.num_tasks)
        by_task = LocalDispatcher(self.num_tasks)
        rows_TH, plan = by_task.dispatch(hidden_TH, task_T)
        return by_task.combine(grouped_linear(rows_TH, plan.offsets_N, weight), plan)


def _scores_by_sentence(weight_KNH: Tensor, hidden_TH: Tensor, task_B: Tensor) -> Tensor:
    """Return scores by a copy of the gate for each sentence.

    This does not synchronise a GPU.
    """
    # The gradient of an embedding, unlike that of indexing, is summed in a fixed order.
    weight_BNH = F.embedding(task_B, weight_KNH.flatten(1)).view(-1, *weight_KNH.shape[1:])
    length = len(hidden_TH) // max(len(task_B), 1)
    hidden_LBH = hidden_TH.view(length, len(task_B), hidden_TH.shape[1])
    return torch.einsum("lbh,bnh->lbn", hidden_LBH, weight_BNH).flatten(0, 1)


def checked_tasks(tokens: Tokens, num_tasks: int) -> Tensor:
    """Return task ids, `num_tasks` for sentences of padding (UserError: wrong ids).

    Without synchronisation, wrong ids raise torch's error later.
    """
    task_B = tokens.task_B
    if task_B is None:
        raise_invalid("task_ids", WITHOUT_TASKS, None)
    wrong_B = (task_B < 0) | (task_B >= num_tasks)
    if tokens.padding_T is not None:
        length = len(tokens.hidden_TH) // max(len(task_B), 1)
        padding_B = tokens.padding_T.view(length, len(task_B)).all(0)
        wrong_B = wrong_B & ~padding_B
        task_B = task_B.masked_fill(padding_B, num_tasks)
    rule = f"from 0 to {num_tasks - 1}, the tasks that the gate knows"
    # Neither compiled code nor a GPU can read the value now.
    if torch.compiler.is_compiling() or not device_kind(task_B).host_can_read:
        torch._assert_async(~wrong_B.any(), f"`task_ids` must be {rule}.")
    elif wrong_B.any():
        raise_invalid("task_ids", rule, int(task_B[wrong_B][0]))
    return task_B


class FixedGate(Gate):
    """One expert per task: a token's expert is its task id, with weight 1."""

    needs_tasks = True
    routes_alone = True
    is_learned = False

    def __init__(self, num_experts: int, hidden_size: int, num_tasks: int) -> None:
        super().__init__(num_experts, hidden_size, num_tasks)
        assert 1 <= num_tasks <= num_experts

    def route(self, tokens: Tokens) -> Routing:
        """Route each token to the expert of its task, with the stored gate 1."""
        gate_T = real_tokens(tokens.hidden_TH)
        expert_T = tasks_of_tokens(checked_tasks(tokens, self.num_tasks), len(gate_T))
        return Routing(expert_T, gate_T, uniform_gate=1.0)


class SwitchGate(Gate):
    """Switch: one softmax gate for all tasks, top-1 (MT-TaG's MT-Switch)."""

    def __init__(self, num_experts: int, hidden_size: int, num_tasks: int = 0) -> None:
        super().__init__(num_experts, hidden_size, num_tasks)
        self.weight = nn.Parameter(torch.empty(num_experts, hidden_size))
        nn.init.normal_(self.weight, std=SOFTMAX_GATE_STD)

    def route(self, tokens: Tokens) -> Routing:
        """Return the most probable expert, with the balance loss `N · Σ_e f_e · P_e`.

        Switch Transformer, equations 4-6.
        """
        share_TN = self.scores(self.weight, tokens).softmax(1)
        gate_T, expert_T = share_TN.max(1)
        real_T = real_tokens(share_TN, tokens.padding_T)
        num_tokens = real_T.sum().clamp(min=1)
        load_N = real_T.new_zeros(self.num_experts).scatter_add(0, expert_T, real_T) / num_tokens
        loss = self.num_experts * (load_N * (real_T @ share_TN / num_tokens)).sum()
        return Routing(expert_T, gate_T, uniform_gate=1 / self.num_experts, balance_loss=loss)


def base_gates(model: nn.Module) -> list[BaseGate]:
    """Return a model's BASE gates in forward order."""
    return [module for module in model.modules() if isinstance(module, BaseGate)]


# Gates of all systems. A system with a gate of its own adds it when it plans its experts.
GATES: Mapping[str, type[Gate]] = {
    "base": BaseGate,
    "task": TaskGate,
    "switch": SwitchGate,
    "fixed": FixedGate,
}


def build_gate(
    kind: str | type[Gate], num_experts: int, hidden_size: int, num_tasks: int = 0, **settings: Any
) -> Gate:
    """Return a gate by name or class; `settings` are further arguments."""
    gate = GATES[kind] if isinstance(kind, str) else kind
    return gate(num_experts, hidden_size, num_tasks, **settings)
