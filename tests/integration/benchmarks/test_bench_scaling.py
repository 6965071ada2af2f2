"""The scaling benchmark: two processes measure both models."""

import pytest

SCRIPT = "bench_scaling"


@pytest.mark.scheduled
def test_two_processes_measure_both_models(bench, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    size = bench.Size(width=16, inner=32, layers=2, heads=2, num_experts=4, symbols=200)
    processes = bench.measure_processes(2, bench.Plan(size, 256, 2))
    assert len(processes) == 2
    for steps in processes:
        assert len(steps) == 4
        for (_, name), of_system in steps.items():
            for step in of_system:
                assert step.tokens > 0
                exchanges = name == bench.SPARSE
                assert (0 < step.exchange < step.seconds) == exchanges
                assert (step.num_bytes > 0) == exchanges
