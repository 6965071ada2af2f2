"""The most uncertain candidates: CA-MTL's algorithm 1 written out, and its edges."""

import math

import numpy as np
import pytest

from fairseq_mtmoe.data.sampling import most_uncertain


def algorithm_1(entropies, classes, b):
    """The numbers of the b chosen, where task t has the entropies `entropies[t]` and `classes[t]` classes."""
    candidates, number = [], 0
    means = []
    for H_t, C_t in zip(entropies, classes, strict=True):
        means.append(sum(H_t) / len(H_t))
        most = -sum(1 / C_t * math.log(1 / C_t) for _ in range(C_t))
        for H_ti in H_t:
            candidates.append((H_ti / most, number))
            number += 1
    greatest = max(means)
    normalized = [(U / greatest, number) for U, number in candidates]
    return sorted(number for _, number in sorted(normalized, reverse=True)[:b])


def arrays(entropies, classes):
    entropy_C = np.array([H for H_t in entropies for H in H_t], dtype=float)
    counts = [len(H_t) for H_t in entropies]
    return entropy_C, np.repeat(np.log(classes), counts), np.repeat(np.arange(len(counts)), counts)


@pytest.mark.parametrize("seed", range(4))
def test_they_are_those_of_algorithm_1(seed):
    random = np.random.default_rng(seed)
    b, classes = int(random.integers(1, 9)), random.integers(2, 7, random.integers(1, 6)).tolist()
    entropies = [(random.random(b) * math.log(C)).tolist() for C in classes]
    assert most_uncertain(*arrays(entropies, classes), b).tolist() == algorithm_1(entropies, classes, b)


@pytest.mark.parametrize("entropy", [0.0, math.nan])
def test_tasks_take_turns_where_all_are_equally_uncertain(entropy):
    chosen = most_uncertain(*arrays([[entropy] * 4] * 3, [2, 2, 2]), 4).tolist()
    assert chosen == [0, 1, 4, 8]


def test_a_task_with_fewer_candidates_leaves_the_rest_to_others():
    assert most_uncertain(*arrays([[0.6], [0.1, 0.2, 0.3]], [2, 2]), 3).tolist() == [0, 2, 3]
    assert most_uncertain(*arrays([[0.6], []], [2, 2]), 3).tolist() == [0]


def test_nobody_is_uncertain_of_the_one_choice_that_there_is():
    assert most_uncertain(*arrays([[0.1, 0.2], [0.0, 0.0]], [2, 1]), 2).tolist() == [0, 1]
