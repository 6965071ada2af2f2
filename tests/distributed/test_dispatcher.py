"""The all-to-all dispatcher by itself: rows reach the process of their expert, and come back to their tokens."""

import pytest
import torch

from fairseq_mtmoe.moe.parallel.all_to_all_dispatcher import AllToAllDispatcher, dispatcher_for
from fairseq_mtmoe.moe.parallel.collectives import CommRecord
from fairseq_mtmoe.moe.parallel.placement import place_experts
from tests.helpers.processes import run_processes

H = 3


def there_and_back(rank: int, num_experts: int) -> dict[str, object]:
    """Rows that say which expert they are for, passed through experts that do nothing."""
    placement = place_experts(num_experts)
    dispatcher = dispatcher_for(placement, CommRecord())
    expert = torch.arange(5 + rank) % (num_experts + 1)  # the last number is padding's
    x = expert.float().unsqueeze(1).expand(-1, H).clone().requires_grad_()
    rows, plan = dispatcher.dispatch(x, expert, max_rows=1)
    scale = 2.0 + torch.arange(len(x))
    back = dispatcher.combine(rows, plan, scale)
    (back * torch.ones(H)).sum().backward()
    scale_TH = torch.where(expert == num_experts, 0, scale).unsqueeze(1).expand(-1, H)
    offsets = plan.offsets_N.tolist()
    parts = rows.tensor_split(plan.offsets_N[:-1]) if len(offsets) > 1 else [rows]
    return {
        "kind": type(dispatcher),
        "here": [sorted(set(part[:, 0].tolist())) for part in parts],
        "experts": [[float(placement.first + place)] for place in range(placement.count)],
        "ends": offsets == plan.host_offsets_N.tolist() and offsets[-1] == len(rows),
        "most": plan.max_rows,
        "back": torch.equal(back, x * scale_TH),
        "gradient": torch.equal(x.grad, scale_TH),
    }


@pytest.mark.parametrize("num_experts", [2, 4])
def test_rows_reach_their_experts_and_come_back(num_experts):
    for found in run_processes(there_and_back, 2, num_experts):
        assert found["kind"] is AllToAllDispatcher
        assert found["here"] == found["experts"] and found["ends"]
        assert found["most"] is None  # other processes' rows come too
        assert found["back"] and found["gradient"]  # divided by P, then multiplied
