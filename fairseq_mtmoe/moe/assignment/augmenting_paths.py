"""Successive shortest augmenting paths: from the tokens' preferred experts to equal loads, at the least loss.

This is minimum-cost flow, as in the Hungarian algorithm, with prices as the nodes' potentials. Moving a token from
expert a to b costs `score_a - score_b`. The cheapest token for each pair of experts is an edge of a graph of N nodes.
The preferred experts are optimal for their own loads, and each path keeps the assignment optimal. Tokens of nearly
equal cost move together.

If N does not divide T, some experts get one token more than others. An additional node, the pool, takes the surplus
token of an expert without a larger share, and gives it to an expert with one.
"""

from itertools import pairwise

import torch
from torch import Tensor

from fairseq_mtmoe.moe.assignment.dual_prices import Assignment, larger_shares


def assign_by_augmenting_paths(scores_TN: Tensor, prices_N: Tensor, tolerance: float) -> Assignment:
    """Return an optimal assignment, ⌊T/N⌋ or ⌈T/N⌉ tokens per expert, and prices.

    `scores_TN` are finite; prices have their type. Tokens that move together may differ in cost by `tolerance`.
    """
    search = _AugmentingPaths(scores_TN.cpu(), prices_N.cpu(), tolerance)
    for _ in range(len(scores_TN)):  # each round moves at least one surplus token
        if not search.advance():
            break
    return Assignment(search.expert_T.to(scores_TN.device), search.middle().to(scores_TN.device))


class _AugmentingPaths:
    """The state of the search. Nodes are the experts and, last, the pool."""

    def __init__(self, scores_TN: Tensor, prices_N: Tensor, tolerance: float) -> None:
        num_tokens, num_experts = scores_TN.shape
        self.scores_TN = scores_TN
        self.tolerance = tolerance
        self.pool = num_experts
        self.expert_T = (scores_TN - prices_N).argmax(1)
        self.has_extra = larger_shares(prices_N, num_tokens)
        # The pool's price is between those of experts with and without a larger share: no step through it pays yet.
        ranked = prices_N.sort(descending=True).values
        number = num_tokens % num_experts
        self.prices = torch.cat([prices_N, ranked[max(number - 1, 0) : number + 1].mean().view(1)])
        share = num_tokens // num_experts + self.has_extra.long()
        self.excess = torch.bincount(self.expert_T, minlength=num_experts) - share
        self.cost = self._all_costs()

    def advance(self) -> bool:
        """Move tokens along a shortest augmenting path; return False if loads are even."""
        if not self.excess.any():
            return False
        distance, previous = self._distances()
        to_sink = torch.where(self.excess < 0, distance[:-1], torch.inf)
        sink = int(to_sink.argmin())
        self.prices -= distance.clamp(max=float(to_sink[sink]))
        path = [sink]
        while previous[path[-1]] >= 0:
            path.append(previous[path[-1]])
        path.reverse()
        steps = list(pairwise(path))
        movable = [self._movable(start, end) for start, end in steps]
        count = min(int(self.excess[path[0]]), -int(self.excess[sink]), *(len(tokens) for tokens in movable))
        for (start, end), tokens in zip(steps, movable, strict=True):
            self._move(start, end, tokens[:count])
        self.excess[path[0]] -= count
        self.excess[sink] += count
        for node in path:
            if node != self.pool:
                self._refresh(node)
        return True

    def middle(self) -> Tensor:
        """Return the centre of the prices, (N,), that support the assignment.

        These prices form a polytope: p_a - p_b is at most the cost of the step from a to b. The shortest paths to and
        from an expert give two corners. At the mean of all corners, no token has two best experts unless it must.
        """
        room = (self.cost - self.prices.unsqueeze(1) + self.prices).clamp(min=0).fill_diagonal_(0)
        for node in range(self.pool + 1):  # Floyd and Warshall's algorithm
            room = torch.minimum(room, room[:, node : node + 1] + room[node])
        room = room[:-1, :-1]
        return self.prices[:-1] + (room.mean(1) - room.mean(0)) / 2

    def _distances(self) -> tuple[Tensor, list[int]]:
        """Return lengths of shortest paths from full experts, and previous nodes (-1: none)."""
        length = (self.cost - self.prices.unsqueeze(1) + self.prices).clamp(min=0)
        distance = torch.full_like(self.prices, torch.inf)
        distance[:-1][self.excess > 0] = 0
        previous = torch.full_like(distance, -1, dtype=torch.long)
        for _ in range(self.pool):  # a path without a circle has at most N steps
            reached = (distance.unsqueeze(1) + length).min(0)
            better = reached.values < distance
            if not better.any():
                break
            distance = torch.where(better, reached.values, distance)
            previous = torch.where(better, reached.indices, previous)
        return distance, previous.tolist()

    def _movable(self, start: int, end: int) -> Tensor:
        """Return the tokens that can take this step, cheapest first; one dummy for the pool."""
        if self.pool in (start, end):
            return torch.zeros(1, dtype=torch.long)
        tokens = (self.expert_T == start).nonzero().squeeze(1)
        scores = self.scores_TN[tokens]
        loss = (scores[:, start] - scores[:, end]).sort(stable=True)
        return tokens[loss.indices[loss.values <= loss.values[0] + self.tolerance]]

    def _move(self, start: int, end: int, tokens: Tensor) -> None:
        if end == self.pool:
            self.has_extra[start] = True
        elif start == self.pool:
            self.has_extra[end] = False
        else:
            self.expert_T[tokens] = end

    def _all_costs(self) -> Tensor:
        """Return the cheapest token's loss on each step, (N+1, N+1), or infinity."""
        cost = self.scores_TN.new_full((self.pool + 1, self.pool + 1), torch.inf)
        own = self.expert_T.unsqueeze(1)
        loss_TN = self.scores_TN.gather(1, own) - self.scores_TN
        cost[:-1, :-1].scatter_reduce_(0, own.expand_as(loss_TN), loss_TN, "amin")
        cost[:-1, -1].masked_fill_(~self.has_extra, 0)
        cost[-1, :-1].masked_fill_(self.has_extra, 0)
        return cost

    def _refresh(self, expert: int) -> None:
        """Recompute the costs of steps from `expert`, and of those from the pool to it."""
        scores = self.scores_TN[self.expert_T == expert]
        self.cost[expert, :-1] = torch.inf
        if len(scores):
            self.cost[expert, :-1] = (scores[:, expert : expert + 1] - scores).amin(0)
        self.cost[expert, self.pool] = torch.inf if self.has_extra[expert] else 0.0
        self.cost[self.pool, expert] = 0.0 if self.has_extra[expert] else torch.inf
