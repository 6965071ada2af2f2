"""Which dispatcher there is, and whom its copies talk to; what several processes do is in tests/distributed."""

import copy
import threading

from fairseq_mtmoe.moe import LocalDispatcher
from fairseq_mtmoe.moe.parallel.all_to_all_dispatcher import AllToAllDispatcher, dispatcher_for
from fairseq_mtmoe.moe.parallel.collectives import CommRecord
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement


def test_a_dispatchers_copy_has_the_same_group():
    group = threading.Lock()  # can as little be copied as a group of processes
    dispatcher = AllToAllDispatcher(ExpertPlacement(4, 0, 2, group, 2), CommRecord())
    assert copy.deepcopy(dispatcher).placement is dispatcher.placement


def test_experts_in_one_process_need_no_other():
    assert isinstance(dispatcher_for(ExpertPlacement(4, 0, 4), CommRecord()), LocalDispatcher)
