"""The all-to-all dispatcher sends rows to sharded experts' ranks and back.

As in BASE layers (Lewis et al., 2021): one all-to-all sends the numbers of rows, unless they are
known, and one sends the rows each way. The host synchronises only for these numbers. The layer's
output equals that of one process with all experts and all rows.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairseq_mtmoe.moe.dispatch import Dispatcher, DispatchPlan, LocalDispatcher, LocalPlan
from fairseq_mtmoe.moe.grouped_matmul.operators import computed_dtype
from fairseq_mtmoe.moe.parallel.collectives import CommRecord, all_to_all, exchange
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement


def dispatcher_for(placement: ExpertPlacement, record: CommRecord) -> Dispatcher[Any]:
    """Return the dispatcher for a placement.

    `record` gets the cost of its communication.
    """
    if placement.is_sharded:
        return AllToAllDispatcher(placement, record)
    return LocalDispatcher(placement.num_experts)


@dataclass(frozen=True, kw_only=True)
class AllToAllPlan(DispatchPlan):
    """The plan of an all-to-all.

    Attributes:
        left: the order of this rank's tokens before they were sent, by expert, and therefore by
            rank.
        send: number of rows sent to each rank, (P,).
        receive: number of rows received from each rank, (P,).
        arrived: the order of received rows, sorted by expert; None if this rank has one expert.
    """

    left: LocalPlan
    send: list[int]
    receive: list[int]
    arrived: LocalPlan | None


class AllToAllDispatcher(Dispatcher[AllToAllPlan]):
    """Sends each row to the rank of its expert, one of P ranks in the experts' group.

    Both methods are collective calls. Gradients of this rank's experts are divided by P, because
    they see the rows of P ranks, whose losses data parallelism averages.
    """

    def __init__(self, placement: ExpertPlacement, record: CommRecord) -> None:
        # Not the group itself: it cannot be copied with a model (for averaging).
        self.placement = placement
        self.record = record
        self.leaving = LocalDispatcher(placement.num_experts)
        self.arriving = LocalDispatcher(placement.count)

    def dispatch(
        self,
        x_TH: Tensor,
        expert_T: Tensor,
        max_rows: int | None = None,
        arriving_PE: Tensor | None = None,
    ) -> tuple[Tensor, AllToAllPlan]:
        """See `Dispatcher`; `max_rows` is ignored, since rows of other ranks arrive, too."""
        rows_TH, left = self.leaving.dispatch(x_TH, expert_T)
        # Experts would cast on arrival: send fewer bytes.
        rows_TH = rows_TH.to(computed_dtype(rows_TH))
        send, received, received_PE = self._counts(left.offsets_N, arriving_PE)
        receive = [sum(by_expert) for by_expert in received]
        group = self.placement.group
        size = self.placement.group_size
        rows_SH = exchange(
            rows_TH[: sum(send)], send, receive, group, self.record, gradient_scale=size
        )
        count_E = [sum(by_process) for by_process in zip(*received, strict=True)]
        host_offsets_E = torch.tensor(count_E, device="cpu").cumsum(0)
        rows_SH, arrived = self._sorted(rows_SH, received_PE)
        if arrived is None:
            offsets_E = rows_SH.new_full((1,), len(rows_SH), dtype=torch.long)
        else:
            offsets_E = arrived.offsets_N
        plan = AllToAllPlan(
            offsets_N=offsets_E,
            host_offsets_N=host_offsets_E,
            left=left,
            send=send,
            receive=receive,
            arrived=arrived,
        )
        return rows_SH, plan

    def combine(self, rows_SH: Tensor, plan: AllToAllPlan, scale_T: Tensor | None = None) -> Tensor:
        """See `Dispatcher`; 0 for tokens without an expert, which were not sent."""
        if plan.arrived is not None:
            rows_SH = self.arriving.combine(rows_SH, plan.arrived)
        mean = 1 / self.placement.group_size
        rows_TH = exchange(
            rows_SH, plan.receive, plan.send, self.placement.group, self.record, gradient_scale=mean
        )
        padding = len(plan.left.token_T) - len(rows_TH)
        if padding:
            rows_TH = torch.cat([rows_TH, rows_TH.new_zeros(padding, rows_TH.shape[1])])
        return self.leaving.combine(rows_TH, plan.left, scale_T)

    def _counts(
        self, offsets_N: Tensor, received_PE: Tensor | None
    ) -> tuple[list[int], list[list[int]], Tensor]:
        """Return numbers of rows to each rank, and from each per local expert, (P, E)."""
        size = self.placement.group_size
        count = self.placement.count
        sent_N = offsets_N.diff(prepend=offsets_N.new_zeros(1))
        if received_PE is None:
            equal = [count] * size
            received_PE = all_to_all(sent_N, equal, equal, self.placement.group, self.record)
            received_PE = received_PE.view(size, count)
        numbers = torch.cat([sent_N.view(size, count).sum(1), received_PE.view(-1)]).tolist()
        received = [numbers[start : start + count] for start in range(size, len(numbers), count)]
        return numbers[:size], received, received_PE

    def _sorted(self, rows_SH: Tensor, received_PE: Tensor) -> tuple[Tensor, LocalPlan | None]:
        """Sort rows by expert; they arrive sorted by rank, then by expert."""
        count = self.placement.count
        if count == 1:
            return rows_SH, None
        labels = torch.arange(count, device=rows_SH.device).repeat(len(received_PE))
        expert_S = labels.repeat_interleave(received_PE.view(-1), output_size=len(rows_SH))
        return self.arriving.dispatch(rows_SH, expert_S)
