"""Token shuffle: balanced assignment of tokens that are shuffled over ranks.

BASE layers train like this. Sentences of one rank resemble each other; balancing them alone would
spread similar tokens over all experts. Only the N scores of a token are sent to the rank that
assigns it, which returns the expert's number; the token itself goes directly to its expert. With
these numbers, the rank sends how many tokens each expert gets.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch import distributed as dist

from fairseq_mtmoe.moe.device_kind import is_on_gpu
from fairseq_mtmoe.moe.parallel.collectives import CommRecord, all_to_all, gather_numbers
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement

# Scores and padding to experts and prices.
Assign = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]


class TokenCounts:
    """The ranks' numbers of tokens in a pass, which the first layer gathers.

    That layer also gathers the numbers of `following` stacks.
    """

    def __init__(self, *following: int) -> None:
        self._following = following
        self._counts: list[list[int]] | None = None  # by stack

    def among(
        self, group: dist.ProcessGroup, num_tokens: int, device: torch.device, record: CommRecord
    ) -> list[int]:
        """Return the counts of all ranks in order; only the first call communicates."""
        if self._counts is None:
            self._counts = gather_numbers([num_tokens, *self._following], device, group, record)
        return self._counts[0]

    def of_next(self) -> TokenCounts:
        """Return the counts of the next stack.

        It gathers them if no layer has done so.
        """
        counts = TokenCounts(*self._following[1:])
        counts._counts = None if self._counts is None else self._counts[1:]
        return counts


class TokenShuffle:
    """Assigns the tokens of a group in random parts of equal size, one on each rank."""

    def __init__(self, placement: ExpertPlacement) -> None:
        self.placement = placement

    def __call__(
        self,
        scores_TN: Tensor,
        padding_T: Tensor | None,
        assign: Assign,
        record: CommRecord,
        counts: TokenCounts | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return experts, (T,), and each rank's numbers of rows by local expert, (P, E).

        Also returns prices, (N,), and number of tokens, (), of the part that this rank assigned.

        The order is drawn from torch's CPU generator, which fairseq seeds in each update, so
        resumed runs draw the same.
        """
        group = self.placement.group
        num_tokens, num_experts = scores_TN.shape
        numbers = (counts or TokenCounts()).among(group, num_tokens, scores_TN.device, record)
        rank = dist.get_rank(group)
        size = len(numbers)
        assert numbers[rank] == num_tokens, (
            "a stack must have the number of tokens that the pass gathered"
        )
        send = parts_of(num_tokens, rank, size)
        receive = [parts_of(count, source, size)[rank] for source, count in enumerate(numbers)]
        # From pinned memory the copy to a GPU is asynchronous.
        order_T = torch.randperm(num_tokens, pin_memory=is_on_gpu(scores_TN))
        order_T = order_T.to(scores_TN.device, non_blocking=True)
        # The last column has the token's rank, from 1, and 0 at padding.
        sent = scores_TN.new_full((num_tokens, num_experts + 1), rank + 1)
        sent[:, :-1] = scores_TN[order_T]
        if padding_T is not None:
            sent[:, -1].masked_fill_(padding_T[order_T], 0)
        arrived = all_to_all(sent, send, receive, group, record)
        part_SN = arrived[:, :-1].contiguous()
        owner_S = arrived[:, -1].long()
        expert_S, price_N = assign(part_SN, owner_S == 0)
        sent = self._answers(expert_S, owner_S, receive)
        there = [number + num_experts for number in receive]
        back = [number + num_experts for number in send]
        lengths = [length for count in send for length in (count, num_experts)]
        parts = torch.split(all_to_all(sent, there, back, group, record), lengths)
        answer_T = torch.cat(parts[::2])
        rows_PE = torch.stack(parts[1::2]).sum(0).view(size, -1)
        expert_T = torch.empty_like(order_T)
        expert_T[order_T] = answer_T.long()
        return expert_T, rows_PE, price_N, (owner_S > 0).sum().float()

    def _answers(self, expert_S: Tensor, owner_S: Tensor, receive: list[int]) -> Tensor:
        """Return the experts of tokens and N numbers for each rank in turn, int32.

        The numbers are the rows in this part that each rank sends to each of the receiver's N/P
        experts.
        """
        size = self.placement.group_size
        num_experts = self.placement.num_experts
        label_S = owner_S * (num_experts + 1) + expert_S  # N is padding's
        answer_S = expert_S.to(torch.int32)
        count = answer_S.new_zeros((size + 1) * (num_experts + 1))
        count.scatter_add_(0, label_S, torch.ones_like(answer_S))
        real_count = count.view(size + 1, -1)[1:, :-1]
        count_PX = real_count.reshape(size, size, -1).transpose(0, 1).flatten(1)
        answers = torch.split(answer_S, receive)
        return torch.cat([part for pair in zip(answers, count_PX, strict=True) for part in pair])


def parts_of(num_tokens: int, source: int, size: int) -> list[int]:
    """Return `source`'s numbers of tokens for each rank; the next get the remainder."""
    share, rest = divmod(num_tokens, size)
    return [share + ((rank - source) % size < rest) for rank in range(size)]
