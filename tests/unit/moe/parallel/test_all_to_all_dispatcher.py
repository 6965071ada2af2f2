"""Copies of a layer, of which moving averages are made, talk to the same processes."""

import copy
import threading

from fairseq_mtmoe.moe.parallel.all_to_all_dispatcher import AllToAllDispatcher
from fairseq_mtmoe.moe.parallel.collectives import CommRecord
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement


def test_a_dispatchers_copy_has_the_same_group():
    group = threading.Lock()  # can as little be copied as a group of processes
    dispatcher = AllToAllDispatcher(ExpertPlacement(4, 0, 2, group, 2), CommRecord())
    assert copy.deepcopy(dispatcher).placement is dispatcher.placement
