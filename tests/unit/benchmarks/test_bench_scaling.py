"""The scaling benchmark: processes measure what they should, and the documentation holds what the model says."""

import itertools
from pathlib import Path

import pytest
from exchange_model import Machine, Transformer, num_operations, predict
from timing import shown

from fairseq_mtmoe.io.tables import markdown_table
from tests.helpers.tables import unpadded

SCRIPT = "bench_scaling"
TINY = dict(width=16, inner=32, layers=2, heads=2, num_experts=4, symbols=200)


@pytest.mark.rare
def test_two_processes_measure_both_models_and_bare_exchanges(bench, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    size = bench.Size(**TINY)
    found = bench.measure_processes(2, bench.Plan(size, 256, 2, "pytorch_ddp"))
    assert len(found) == 2
    for kind in (bench.WEAK, bench.STRONG):
        for name in (bench.STOCK, bench.SPARSE, bench.ALIGNED):
            for steps in bench.updates(found, kind, name):
                exchanges = name != bench.STOCK
                for step in steps:
                    assert 0 < step.tokens < step.rows <= step.places
                    assert (0 < step.exchange < step.seconds) == exchanges
                    assert step.operations == (2 * num_operations(shuffles=True) + 1) * exchanges
                if exchanges:
                    sent = sum(step.num_bytes for step in steps)
                    assert bench.predicted_bytes(size, 2, steps) == pytest.approx(sent, rel=0.3)  # few tokens
    for one in found:
        assert set(one.pings) == set(bench.PING_BYTES) and all(min(seconds) > 0 for seconds in one.pings.values())


def test_bytes_of_measured_batches_are_the_models(bench):
    size = bench.Size(**TINY)
    model = Transformer(size.width, size.inner, size.layers, size.layers, size.num_experts, size.symbols)
    steps = [bench.Step(1.0, tokens=30, rows=60, places=60)] * 4
    right = predict(model, Machine(1, 8, 1, 1, 0), 4, 30, element_size=4).num_bytes
    assert bench.predicted_bytes(size, 4, steps) == pytest.approx(4 * right)
    assert bench.flops(size, steps) == pytest.approx(4 * model.flops(30))


def test_the_documentation_has_rows_of_the_predictions(bench):
    text = (Path(bench.__file__).parents[1] / "docs" / "concepts" / "communication.md").read_text(encoding="utf-8")
    lines = unpadded(text).splitlines()
    for columns, rows in ((bench.COLUMNS, bench.prediction_rows()), (bench.LIMIT_COLUMNS, bench.limit_rows())):
        head, rule, *predicted = unpadded(
            markdown_table(columns, [[shown(value) for value in row] for row in rows])
        ).splitlines()
        first = lines.index(head) + 2
        assert lines[first - 1] == rule
        written = list(itertools.takewhile(lambda line: line.startswith("|"), lines[first:]))
        assert len(written) >= 4 and set(written) <= set(predicted)
