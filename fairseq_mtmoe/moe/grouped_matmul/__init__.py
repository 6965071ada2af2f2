"""Grouped matmul: products of sorted rows with one matrix per group, for experts and task gates."""
