"""Balanced assignment of tokens that were shuffled at random across processes, as BASE layers do it in training.

Sentences of one process resemble each other, and must not be spread over all experts. Instead of the tokens only their
scores are shuffled (N numbers there, the expert's number back); the tokens go straight to their expert.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch import distributed as dist

from fairseq_mtmoe.moe.device_kind import is_on_gpu
from fairseq_mtmoe.moe.parallel.collectives import CommRecord, all_to_all, gather_numbers
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement

Assign = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]  # scores and padding to experts and prices


def real_tokens(scores_TN: Tensor, padding_T: Tensor | None) -> Tensor:
    """Return how many tokens are no padding, (), where the scores are."""
    if padding_T is None:
        return scores_TN.new_full((), len(scores_TN), dtype=torch.float32)
    return (~padding_T).sum().float()


class TokenCounts:
    """How many tokens each process has in a pass through a stack: its first layer asks, the others know."""

    def __init__(self) -> None:
        self._counts: list[int] | None = None

    def among(self, group: dist.ProcessGroup, num_tokens: int, device: torch.device, record: CommRecord) -> list[int]:
        """Return all processes' counts in their order, given this one's; who asks records the cost."""
        if self._counts is None:
            self._counts = gather_numbers(num_tokens, device, group, record)
        return self._counts


class TokenShuffle:
    """Assigns the tokens of a group's processes in random parts of equal size, one in each process."""

    def __init__(self, placement: ExpertPlacement) -> None:
        assert placement.group is not None
        self.placement = placement

    def __call__(
        self,
        scores_TN: Tensor,
        padding_T: Tensor | None,
        assign: Assign,
        record: CommRecord,
        counts: TokenCounts | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return each token's expert, (T,), and of the part that this process assigned the prices, (N,), and the size.

        The order is drawn from torch's CPU generator, which fairseq seeds in each update: resumed runs draw the same.
        """
        group = self.placement.group
        assert group is not None
        num_tokens, num_experts = scores_TN.shape
        numbers = (counts or TokenCounts()).among(group, num_tokens, scores_TN.device, record)
        rank, size = dist.get_rank(group), len(numbers)
        send = parts_of(num_tokens, rank, size)
        receive = [parts_of(count, source, size)[rank] for source, count in enumerate(numbers)]
        # From pinned memory it flows to a GPU by itself.
        order_T = torch.randperm(num_tokens, pin_memory=is_on_gpu(scores_TN)).to(scores_TN.device, non_blocking=True)
        # A last column tells padding from tokens.
        sent = scores_TN.new_zeros(num_tokens, num_experts + 1)
        sent[:, :-1] = scores_TN[order_T]
        if padding_T is not None:
            sent[:, -1] = padding_T[order_T]
        arrived = all_to_all(sent, send, receive, group, record)
        part_SN, padding_S = arrived[:, :-1].contiguous(), arrived[:, -1] > 0
        expert_S, price_N = assign(part_SN, padding_S)
        expert_T = torch.empty_like(order_T)
        expert_T[order_T] = all_to_all(expert_S.to(torch.int32), receive, send, group, record).long()
        return expert_T, price_N, real_tokens(part_SN, padding_S)


def parts_of(num_tokens: int, source: int, size: int) -> list[int]:
    """Return how many tokens `source` gives to each process: equal, the rest to those that follow it."""
    share, rest = divmod(num_tokens, size)
    return [share + ((rank - source) % size < rest) for rank in range(size)]
