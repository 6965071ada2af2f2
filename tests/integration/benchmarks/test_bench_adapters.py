"""The benchmark of adapters: systems that are equal where they must be, and train what they should."""

import json

import pytest
import torch
from measure import Report

from tests.helpers.t5 import TINY

pytest.importorskip("peft")
SCRIPT = "bench_adapters"


@pytest.fixture
def size(bench):
    return bench.Size(TINY, batch=2, positions=9, prompt=3, written=3)


def test_everything_is_measured(bench, size, tmp_path):
    report = Report("adapters_tiny", "tiny")
    bench.compare(report, size, 2)
    report.finish(write=True, check=False)
    written = json.loads((tmp_path / "adapters_tiny.json").read_text())
    assert len(written["floors"]) == 4 and all(figure["value"] > 0 for figure in written["floors"])


def test_each_system_trains_its_own_part_and_lora_that_differs_from_the_peers_is_noticed(bench, size):
    found = bench.systems(size)
    bench.check_equal(found)
    for system in (found[name] for name in bench.TRAINED):
        system.prepare()
        before = [value.clone() for value in system.module.parameters()]
        system.step()
        for old, new in zip(before, system.module.parameters(), strict=True):
            assert torch.equal(old, new) != new.requires_grad
    with torch.no_grad():
        found[bench.OURS].module.decoder.layers[0].mixture.adapters.up[0, 0] += 1
    with pytest.raises(AssertionError):
        bench.check_equal(found)
