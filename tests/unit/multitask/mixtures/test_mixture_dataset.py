"""Batches of several tasks, which have nothing to do with languages."""

import re
from pathlib import Path

import numpy as np
import pytest

import fairseq_mtmoe
from fairseq_mtmoe.multitask.mixtures.dataset import batches_of
from tests.helpers.refused import refused


def test_no_example_is_dropped_from_batches_and_one_that_does_not_fit_is_refused():
    lengths = np.array([1, 2, 2, 3, 4, 4, 4, 5, 5, 5, 8])
    batches = batches_of(np.arange(20, 31), lengths, 20, 4, 2)
    assert [batch.tolist() for batch in batches] == [[20, 21, 22, 23], [24, 25, 26, 27], [28, 29], [30]]
    with refused("--max-tokens"):
        batches_of(np.arange(11), lengths, 7)


@pytest.mark.parametrize("room", ["multitask/mixtures", "multitask/sampling", "multitask"])
def test_what_tasks_of_all_kinds_share_knows_nothing_of_languages(room):
    for file in (Path(fairseq_mtmoe.__file__).parent / room).glob("*.py"):
        code = re.sub(r'""".*?"""|#[^\n]*', "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert not re.findall(r"(?<![a-z])(?:langs?|languages?|pairs?|sources?|targets?|tiers?)(?![a-z])", code), file
