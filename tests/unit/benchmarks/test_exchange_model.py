"""The bandwidth model: what each formula says in cases that can be counted by hand, and that its parts fit together."""

import math
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


def test_a_prediction_is_the_sum_of_its_parts():
    found = predict(MODEL, PLAIN, world_size=8, tokens=800)
    assert found.group_size == 8
    rows = formulas.row_bytes(700, 700, 64, 2) + formulas.count_bytes(16, 8)
    assert found.num_bytes == 4 * (rows + formulas.shuffle_bytes(700, 700, 16)) + 2 * formulas.gather_bytes(8)
    assert found.exchange == pytest.approx(found.num_bytes / 1e9)
    assert found.compute == MODEL.flops(800) / 1e12
    assert found.share == pytest.approx(found.exchange / (found.exchange + found.compute))
    waiting = predict(MODEL, replace(PLAIN, latency=0.01), 8, 800)
    assert waiting.waits == pytest.approx(0.01 * (4 * 7 + 2))
    assert waiting.exchange == pytest.approx(found.exchange + waiting.waits)
    assert predict(MODEL, PLAIN, 8, 800, shuffles=False).num_bytes == 4 * rows
    alone = predict(MODEL, replace(PLAIN, latency=1.0), 7, 800)  # every process holds all experts
    assert (alone.group_size, alone.num_bytes, alone.exchange, alone.averaging) == (1, 0, 0, 0)


def test_fewer_experts_than_processes_stay_in_a_node_and_are_averaged():
    machine = replace(PLAIN, between=1e6)
    few, many = (predict(replace(MODEL, num_experts=count), machine, 32, 800) for count in (8, 32))
    assert (few.group_size, many.group_size, many.averaging) == (8, 32, 0)
    assert few.exchange < many.exchange / 100
    numbers = 4 * (2 * 64 * 256 + 256 + 64)
    assert few.averaging == pytest.approx(2 * numbers * 2 * 3 / 4 / 1e6)


def test_the_speeds_that_hide_rows_and_that_give_a_share_do_so():
    speed = formulas.bandwidth_to_hide(256, 1e12, 8, extra=formulas.shuffle_share(16, 64))
    found = predict(MODEL, replace(PLAIN, inside=speed), 8, 1_000_000)
    assert found.exchange == pytest.approx(found.experts, rel=1e-3)  # but for the counts
    assert predict(MODEL, replace(PLAIN, inside=speed * 1.01), 8, 100_000).hides
    assert not predict(MODEL, replace(PLAIN, inside=speed * 0.99), 8, 100_000).hides
    machine = replace(PLAIN, latency=1e-6)
    speed = formulas.bandwidth_for_share(MODEL, machine, 8, 5000, share=0.2)
    assert predict(MODEL, replace(machine, inside=speed), 8, 5000).share == pytest.approx(0.2)
    assert formulas.bandwidth_for_share(MODEL, replace(PLAIN, latency=10.0), 8, 5000) == math.inf
    tokens = formulas.tokens_to_hide_waits(MODEL, machine, 8)
    found = predict(MODEL, replace(machine, inside=math.inf), 8, tokens)
    assert found.exchange == pytest.approx(found.experts)


def test_a_line_is_found_again_and_big_messages_do_not_drown_small_ones():
    sizes = [1e3, 1e4, 1e5, 1e6]
    assert formulas.fit_link(sizes, [2e-4 + size / 5e8 for size in sizes]) == pytest.approx((2e-4, 5e8))
    # The largest is 30% off: the latency stays.
    latency, _ = formulas.fit_link(sizes, [*(2e-4 + size / 5e8 for size in sizes[:-1]), 1.3 * (2e-4 + 1e6 / 5e8)])
    assert latency == pytest.approx(2e-4, rel=0.1)
