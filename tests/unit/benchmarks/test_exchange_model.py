"""The bandwidth model: what formulas say in cases that can be counted by hand."""

from dataclasses import replace

import exchange_model as formulas
import pytest
from exchange_model import Machine, Transformer, predict

# One unit of everything, so that a term counts as it stands.
PLAIN = Machine(flops=1e12, node_size=8, inside=1e9, between=1e9, latency=0.0)
MODEL = Transformer(width=64, inner=256, layers=4, expert_layers=4, num_experts=16, vocabulary=1000, length=10)


def test_time_flows_through_both_kinds_of_links_at_once():
    machine = Machine(1e12, node_size=4, inside=100.0, between=10.0, latency=1.0, peer_latency=0.5)
    assert machine.all_to_all_seconds(1000, 1) == 0
    assert machine.all_to_all_seconds(300, 4) == 1 + 3 * 0.5 + 3
    # Of 15 other processes 12 are elsewhere: 1200 of 1500 bytes cross nodes.
    assert machine.all_to_all_seconds(1500, 16) == pytest.approx(1 + 15 * 0.5 + 120)
    assert machine.all_to_all_seconds(0, 4, operations=7) == 7 * 2.5
    assert machine.all_reduce_seconds(1000, 4, 3, same_node=False) == 3 * 2.5 + 2 * 750 / 10


def test_experts_that_all_processes_hold_cost_nothing_and_layers_may_not_shuffle():
    """`docs/concepts/communication.md` has the other predictions, and a test has these tables made anew."""
    alone = predict(MODEL, replace(PLAIN, latency=1.0), 7, 800)
    assert (alone.group_size, alone.num_bytes, alone.exchange, alone.averaging) == (1, 0, 0, 0)
    assert [formulas.count_bytes(16, 8, shuffles) for shuffles in (True, False)] == [7 * 16 * 4, 14 * 8]
    assert [formulas.gather_bytes(8, stacks) for stacks in (1, 2)] == [7 * 8, 2 * 7 * 8]
    rows = formulas.row_bytes(700, 700, 64, 2) + formulas.count_bytes(16, 8, False)
    assert predict(MODEL, PLAIN, 8, 800, shuffles=False).num_bytes == 4 * rows


def test_a_line_is_found_again_and_big_messages_do_not_drown_small_ones():
    sizes = [1e3, 1e4, 1e5, 1e6]
    assert formulas.fit_link(sizes, [2e-4 + size / 5e8 for size in sizes]) == pytest.approx((2e-4, 5e8))
    # The largest is 30% off: the latency stays.
    latency, _ = formulas.fit_link(sizes, [*(2e-4 + size / 5e8 for size in sizes[:-1]), 1.3 * (2e-4 + 1e6 / 5e8)])
    assert latency == pytest.approx(2e-4, rel=0.1)
