"""Experts in several processes: rows travel to their experts and back.

BASE layers' exchange ("Tricks for Training Sparse Translation Models" §2.1, after Lewis et al., 2021): one all-to-all
of how many rows go where, the only thing that the host waits for, and one of the rows each way. Each process may have
any number of rows, none too. The layer's output is that of one process with all experts and all rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_mtmoe.moe.dispatch import combine, dispatch
from fairseq_mtmoe.moe.experts import ExpertBank
from fairseq_mtmoe.moe.grouped_matmul.operators import reads_ends
from fairseq_mtmoe.moe.parallel.collectives import CommRecord, all_to_all_alike, exchange


def remote_experts(experts: ExpertBank, rows_TH: Tensor, ends_N: Tensor, record: CommRecord) -> Tensor:
    """Each of all N experts on its own rows, as `ExpertBank` does where it holds them all: (T, H) to (T, H).

    To be called by all processes of the experts' group together. The gradients of this process's experts are divided
    by the number of processes P: they see the rows of P processes, whose losses data parallelism averages.
    """
    placement = experts.placement
    group, size, count = placement.group, placement.group_size, placement.count
    assert group is not None
    if torch.is_autocast_enabled(rows_TH.device.type):  # the experts would do it on arrival: travel light
        rows_TH = rows_TH.to(torch.get_autocast_dtype(rows_TH.device.type))
    sent_N = ends_N.diff(prepend=ends_N.new_zeros(1))
    received_PE = all_to_all_alike(sent_N, group, record).view(size, count)
    numbers = torch.cat([sent_N.view(size, count).sum(1), received_PE.view(-1)]).tolist()
    send, received = numbers[:size], [numbers[start : start + count] for start in range(size, len(numbers), count)]
    receive = [sum(by_expert) for by_expert in received]
    here_SH = exchange(rows_TH[: sum(send)], send, receive, group, record, gradient_scale=size)
    done_SH = _compute(experts, here_SH, received_PE, [sum(by_process) for by_process in zip(*received, strict=True)])
    back_TH = exchange(done_SH, receive, send, group, record, gradient_scale=1 / size)
    padding = len(rows_TH) - sum(send)
    return torch.cat([back_TH, back_TH.new_zeros(padding, back_TH.shape[1])]) if padding else back_TH


def _compute(experts: ExpertBank, rows_SH: Tensor, received_PE: Tensor, received_E: list[int]) -> Tensor:
    """The rows came sorted by process, then expert; the experts want them by expert."""
    count = len(received_E)
    on_host = reads_ends(rows_SH, experts.fc1_weight)
    known_E = torch.tensor(received_E, device="cpu").cumsum(0)
    if count == 1:
        ends_E = known_E if on_host else rows_SH.new_full((1,), len(rows_SH), dtype=torch.long)
        computed: Tensor = experts(rows_SH, ends_E)
        return computed
    labels = torch.arange(count, device=rows_SH.device).repeat(len(received_PE))
    expert_S = labels.repeat_interleave(received_PE.view(-1), output_size=len(rows_SH))
    sorted_SH, plan = dispatch(rows_SH, expert_S, count)
    return combine(experts(sorted_SH, known_E if on_host else plan.ends_N), plan)
