"""The expert layer: a gate, a dispatcher and an expert bank.

It takes the place of a transformer's feed-forward layer. By its gate, it is that of "Tricks for
Training Sparse Translation Models" (§2.1, BASE layers) or of MT-TaG (equations 3-6).
"""

from typing import Any

import torch
from torch import Tensor, nn

from fairseq_mtmoe.moe.experts import ExpertBank
from fairseq_mtmoe.moe.gates import Gate, Routing
from fairseq_mtmoe.moe.parallel.all_to_all_dispatcher import dispatcher_for
from fairseq_mtmoe.moe.parallel.collectives import CommRecord
from fairseq_mtmoe.moe.parallel.token_shuffle import TokenCounts
from fairseq_mtmoe.moe.stats import ExpertLoad

COMBINES = ("preserving", "paper")


class MoELayer(nn.Module):
    """The feed-forward branch `scale · E_e(branch_input)` with experts E.

    The block around it adds dropout and the residual connection. With `combine="paper"` the scale
    is the gate value: `y = h + α·E(h)` is the paper's `α·(h + E(h)) + (1-α)·h`. With
    `"preserving"` the scale is `1 + blend·(gate/uniform_gate - 1)` with a learned `blend` that
    starts at 0. Copies of a dense layer then start with that layer's output.

    Attributes:
        last_balance_loss: the gate's load-balancing loss in the last forward pass, until
            `balance_loss` takes it; or None.
        load: number of tokens of each expert, counted while enabled.
        idle: whether all tokens count as padding, in a dummy batch for ranks that wait for this
            rank's experts.
        comm: time and bytes of all-to-all, recorded while enabled.
    """

    def __init__(self, gate: Gate, experts: ExpertBank, combine: str = "preserving") -> None:
        super().__init__()
        assert combine in COMBINES and gate.num_experts == experts.num_experts
        self.gate = gate
        self.experts = experts
        has_blend = combine == "preserving" and gate.is_learned
        self.blend = nn.Parameter(torch.zeros(())) if has_blend else None
        self.last_balance_loss: Tensor | None = None
        self.load = ExpertLoad(gate.num_experts, gate.num_tasks)
        self.idle = False
        self.comm = gate.comm = CommRecord()
        self.dispatcher = dispatcher_for(experts.placement, self.comm)

    def forward(
        self,
        hidden: Tensor,
        branch_input: Tensor,
        padding_mask: Tensor | None = None,
        task_ids: Tensor | None = None,
        token_counts: TokenCounts | None = None,
    ) -> Tensor:
        """Return the branch's output, shaped and typed as `branch_input`.

        Args:
            hidden: the gate's input, the residual stream, (…, H), finite also at padding.
            branch_input: the experts' input, the normed residual stream, (…, H).
            padding_mask: True at padding, (…), which is not routed and gets 0.
            task_ids: the task of each token, (…), long; or of its last dimensions, such as (B,)
                of (L, B).
            token_counts: shared by the layers that see the same tokens in this pass.
        """
        width = branch_input.shape[-1]
        task_B = None if task_ids is None else task_ids.reshape(-1)
        padding_T = None if padding_mask is None else padding_mask.reshape(-1)
        if self.idle:
            padding_T = hidden.new_ones(hidden.shape[:-1], dtype=torch.bool).reshape(-1)
        routing: Routing = self.gate(hidden.reshape(-1, width), task_B, padding_T, token_counts)
        self.last_balance_loss = routing.balance_loss
        self.load.record(routing.expert_T, task_B)
        branch_TH = branch_input.reshape(-1, width)
        rows_SH, plan = self.dispatcher.dispatch(
            branch_TH, routing.expert_T, routing.max_rows, routing.arriving_PE
        )
        rows_SH = self.experts(rows_SH, plan.offsets_N, plan.max_rows, plan.host_offsets_N)
        scale_T = routing.gate_T
        if self.blend is not None:
            scale_T = 1 + self.blend.float() * (scale_T / routing.uniform_gate - 1)
        output_TH = self.dispatcher.combine(rows_SH, plan, scale_T)
        return output_TH.to(branch_input.dtype).view_as(branch_input)

    def __getstate__(self) -> dict[str, Any]:
        # A tensor with a graph cannot be copied, and copies of a model (for averaging) do not
        # need it.
        return {**self.__dict__, "last_balance_loss": None}


def balance_loss(module: nn.Module) -> Tensor:
    """Return the sum of the last pass's load-balancing losses, float32; 0 without any.

    Each layer adds 1 if its load is even, up to N if one expert gets all tokens. Losses are
    removed from the layers, because a layer that the next pass skips (layerdrop) must not return
    the same graph again.
    """
    losses = []
    for layer in module.modules():
        if isinstance(layer, MoELayer) and layer.last_balance_loss is not None:
            losses.append(layer.last_balance_loss)
            layer.last_balance_loss = None
    return torch.stack(losses).sum() if losses else torch.zeros(())
