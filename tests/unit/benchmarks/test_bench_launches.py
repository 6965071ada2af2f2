"""The benchmark of launches: what it counts of small works, and what it finds of layers."""

import json

import pytest
import torch
from click.testing import CliRunner
from launches import LaunchCounter, as_words, count

from fairseq_mtmoe.moe.grouped_matmul import backends

SCRIPT = "bench_launches"


def test_what_is_computed_is_counted_and_views_are_not():
    weight, x = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4)
    loss = []
    forward = count(lambda: loss.append((x.view(-1, 4)[1:] @ weight.t()).relu_().sum()), has_triton=False)
    assert dict(forward.launches) == {"mm": 1, "relu_": 1, "sum": 1}
    assert forward.views >= 3  # a view, a slice, a transposed weight
    backward = count(lambda: loss[0].backward(), has_triton=False)
    assert backward.launches["mm"] == backward.launches["threshold_backward"] == 1
    nothing = count(lambda: torch.empty(2).new_empty(3).unsqueeze(0).float(), has_triton=False)
    assert nothing.total == 0 and nothing.views == 3


def test_an_operator_of_ours_counts_by_what_is_in_it_and_a_kernel_as_one():
    rows, weight = torch.randn(4, 8).bfloat16(), torch.randn(2, 8, 8).bfloat16()
    arguments = (rows, torch.tensor([1, 4]), weight, None, None)
    alone = count(lambda: backends.IN_ONE.linear(*arguments[:4]), has_triton=False)
    within = count(lambda: torch.ops.mtmoe.grouped_linear(*arguments), has_triton=False)
    assert alone.launches["_grouped_mm"] == 1 and within.total > 1
    counter = LaunchCounter()
    with counter:
        counter.kernel("all", lambda: rows.exp() + 1)
    assert dict(counter.launches) == {"kernel all": 1} and as_words(counter.launches) == "kernel all 1"


def test_the_dense_layer_is_two_products_and_their_gradients(bench):
    found = bench.counted(bench.dense, (9, 0), True)
    assert dict(found.forward) == dict(found.evaluation) == {"addmm": 2, "relu": 1}
    assert dict(found.backward) == {"mm": 4, "sum": 2, "threshold_backward": 1}


@pytest.mark.parametrize("gate", ["BASE", "task", "Switch"])
@pytest.mark.parametrize("number", [2, 8, 64])
def test_launches_of_layers(bench, gate, number):
    """The number of experts changes nothing."""
    dense = bench.counted(bench.dense, (9, 0), True)
    found = bench.counted_layer(gate, number, "capability 9, Triton")
    beyond = found.beyond(dense, training=True), found.beyond(dense, training=False)
    assert beyond == {"BASE": (53, 16), "task": (25, 12), "Switch": (22, 10)}[gate]


def test_launches_where_groups_are_filled_up(bench):
    """Balanced groups, on a GPU without torch's grouped product."""
    dense = bench.counted(bench.dense, (8, 0), True)
    found = bench.counted_layer("BASE", 8, "capability 8, Triton")
    assert (found.beyond(dense, training=True), found.beyond(dense, training=False)) == (59, 14)


@pytest.mark.slow
def test_launches_of_an_update(bench):
    rows = {name: (beyond, each) for name, _, beyond, each, _ in bench.update_rows()}
    assert rows == {"dense": (0, 0), "base": (300, 75), "task": (140, 35), "switch": (128, 32)}


@pytest.mark.rare
def test_all_floors_are_met_and_processes_are_counted_too(bench, tmp_path):
    result = CliRunner().invoke(bench.main, ["--check", "--write"])
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "launches.json").read_text(encoding="utf-8"))
    assert len(found["floors"]) == 15 and all(floor["met"] for floor in found["floors"])
    several = {row[0]: row[1:] for row in found["tables"][-1]["rows"]}
    assert [several[f"{gate}, 8 experts"][2] for gate in bench.GATES] == [6, 5, 5]  # as communication.md says
