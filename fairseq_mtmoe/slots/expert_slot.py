"""A block's feed-forward layer, or a mixture of experts in its place.

"Tricks for Training Sparse Translation Models", §2.3. Which blocks have experts, and of which kind, is a `SlotPlan`.
"""

from typing import Optional

from torch import LongTensor, Tensor, nn

from fairseq_mtmoe.moe import ExpertBank, MoELayer, build_gate
from fairseq_mtmoe.moe.gates import BaseGate
from fairseq_mtmoe.moe.parallel.placement import place_experts
from fairseq_mtmoe.moe.parallel.token_shuffle import TokenCounts, TokenShuffle
from fairseq_mtmoe.slots.plan import SlotPlan


class ExpertSlot(nn.Module):
    """Mixed into a block of fairseq: its feed-forward layer is dense (`fc1`, `fc2`) or a mixture of experts (`moe`)."""

    def plan_experts(self, plan: SlotPlan, token_counts: TokenCounts) -> None:
        """Remember the plan, and follow it at once unless the model starts dense. The stack shares `token_counts`."""
        self.plan = plan
        self.token_counts = token_counts
        self.moe: Optional[MoELayer] = None
        if not plan.starts_dense:
            self.sparsify(copy_dense=False)

    def sparsify(self, copy_dense: bool = True) -> None:
        """Replace the feed-forward layer by experts: copies of it, or with an initialisation of their own."""
        fc1, fc2 = self.fc1, self.fc2
        plan = self.plan
        placement = place_experts(plan.num_experts, plan.timeout)
        bank = ExpertBank(
            plan.num_experts,
            fc1.in_features,
            fc1.out_features,
            activation=self.activation_fn,
            dropout=self.activation_dropout_module.p,
            placement=placement,
        )
        if copy_dense:
            bank.copy_dense_(fc1.weight, fc1.bias, fc2.weight, fc2.bias)
        gate = build_gate(plan.gate, plan.num_experts, fc1.in_features, plan.num_tasks, plan.base)
        if isinstance(gate, BaseGate) and placement.is_sharded and plan.shuffles_tokens:
            gate.shuffle = TokenShuffle(placement, self.token_counts)
        moe = MoELayer(gate, bank, combine=plan.combine).to(device=fc1.weight.device, dtype=fc1.weight.dtype)
        moe.requires_grad_(fc1.weight.requires_grad)
        moe.train(self.training)
        del self.fc1, self.fc2
        self.moe = moe

    def experts_branch(self, h: Tensor, padding_mask: Optional[Tensor], task_ids: Optional[LongTensor]) -> Tensor:
        """The block's second half: `h` (L, B, H) plus the experts' branch, normed where fairseq norms it.

        The gate reads the residual stream `h` itself, the experts what the dense layer would read.
        `padding_mask` is (B, L), True for padding; `task_ids` is (B,).
        """
        assert self.moe is not None
        branch_input = self.final_layer_norm(h) if self.normalize_before else h
        mask = None if padding_mask is None else padding_mask.t()
        ids = None if task_ids is None else task_ids.unsqueeze(0).expand(h.shape[:2])
        h = self.residual_connection(self.dropout_module(self.moe(h, branch_input, mask, ids)), h)
        return h if self.normalize_before else self.final_layer_norm(h)
