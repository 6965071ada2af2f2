"""Parametrize a test with few cases in which every two values of different arguments meet, instead of all products."""

from collections import Counter
from itertools import combinations

import pytest

FIXTURES = ("every_device_kind",)  # whose parameters may be arguments of a test


def pairwise(**values):
    """A mark like `pytest.mark.parametrize`, of a list of values for each argument; the same cases in every run."""
    lists = [list(of_name) for of_name in values.values()]
    rows = [[of_name[i] for of_name, i in zip(lists, row, strict=True)] for row in pair_rows([*map(len, lists)])]
    return pytest.mark.parametrize(list(values), rows, indirect=[name for name in FIXTURES if name in values])


def pair_rows(sizes):
    """Rows of indices, greedily: each begins with a pair that is missing, and adds what meets most of it anew."""
    missing = {
        ((one, i), (two, j))
        for one, two in combinations(range(len(sizes)), 2)
        for i in range(sizes[one])
        for j in range(sizes[two])
    }
    rows = []
    while missing:
        row = dict(min(missing))
        for column in sorted(set(range(len(sizes))) - set(row), key=lambda column: -sizes[column]):
            met = [sum(_pair(column, i, *other) in missing for other in row.items()) for i in range(sizes[column])]
            used = Counter(other[column] for other in rows)
            row[column] = max(range(sizes[column]), key=lambda i: (met[i], -used[i]))
        missing -= set(combinations(sorted(row.items()), 2))
        rows.append([row[column] for column in range(len(sizes))])
    return rows


def _pair(column, index, other_column, other_index):
    return tuple(sorted([(column, index), (other_column, other_index)]))
