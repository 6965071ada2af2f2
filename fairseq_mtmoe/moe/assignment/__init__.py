"""Balanced assignment: equal shares of the tokens for all experts, and the experts' dual prices."""

from fairseq_mtmoe.moe.assignment.balanced import balanced_assignment, priced_assignment
from fairseq_mtmoe.moe.assignment.dual_prices import Assignment

__all__ = ["Assignment", "balanced_assignment", "priced_assignment"]
