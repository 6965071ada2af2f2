"""What a layer records of its exchanges; the exchanges themselves are in tests/distributed."""

import copy

import torch

from fairseq_mtmoe.moe.parallel.collectives import CommRecord


def test_bytes_and_operations_count_while_it_is_enabled():
    record, rows = CommRecord(), torch.zeros(5, 3, 2, dtype=torch.float16)
    with record.measure(4, rows):
        pass
    assert (record.num_bytes, record.exchanges, record.seconds) == (0, 0, 0.0)
    record.enabled = True
    for num_rows in (4, 1):
        with record.measure(num_rows, rows):
            pass
    assert (record.num_bytes, record.exchanges) == (5 * 3 * 2 * 2, 2) and record.seconds > 0
    record.reset()
    assert (record.num_bytes, record.exchanges, record.seconds) == (0, 0, 0.0)


def test_a_copys_record_is_its_own_and_empty():
    record = CommRecord()
    record.enabled = True
    with record.measure(2, torch.zeros(2)):
        assert (copy.deepcopy(record).num_bytes, copy.deepcopy(record).enabled) == (0, False)
