"""Grouped matmul: products of sorted rows with one matrix per group.

Experts and task gates use it.
"""
