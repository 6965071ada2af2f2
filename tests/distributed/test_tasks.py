"""A mixture of classification, regression, ranking and words in several processes is the one in one process."""

import numpy as np
import pytest

from tests.helpers.benchmark import make_benchmark, make_encoder, task_arguments
from tests.helpers.processes import run_processes
from tests.helpers.training import run_here


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmark")
    make_benchmark(folder, {"train": 100, "dev": 25})
    make_encoder(folder / "encoder.pt")
    return folder


def train_mixture(rank, data, folder, world_size, backend):
    options = ("--init-encoder", data / "encoder.pt", "--update-freq", 2 // world_size, "--ddp-backend", backend,
               "--max-update", 8, "--validate-interval-updates", 4, "--no-save", "--log-interval", 1,
               "--adam-eps", 1e-3, "--clip-norm", 1.0)  # fmt: skip
    return run_here(task_arguments(data, folder, *options))


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    return run_processes(train_mixture, 1, data, tmp_path_factory.mktemp("alone"), 1, "legacy_ddp")[0]


@pytest.mark.parametrize("backend", ["legacy_ddp", "pytorch_ddp"])
def test_updates_and_metrics_are_those_of_one_process(backend, alone, data, tmp_path):
    several = run_processes(train_mixture, 2, data, tmp_path, 2, backend)
    assert len(alone["norms"]) == 8 and len(alone["validations"]) == 2
    for result in several:
        for name in ("losses", "norms", "validations"):
            np.testing.assert_allclose(result[name], alone[name], rtol=1e-5, err_msg=name)
    for name, right in alone["parameters"].items():
        found = [result["parameters"][name] for result in several]
        whole = np.concatenate(found) if ".moe.experts." in name else found[0]
        np.testing.assert_allclose(whole, right, atol=1e-5, rtol=1e-5, err_msg=name)
