"""Data that several files' tests train on: each worker of the tests makes it once."""

import pytest

from tests.helpers.benchmark import make_benchmark, make_encoder, make_unlabelled


@pytest.fixture(scope="session")
def benchmark_data(tmp_path_factory):
    """A made benchmark, its test data without labels, and `encoder.pt`."""
    folder = tmp_path_factory.mktemp("benchmark")
    make_benchmark(folder, {"train": 300, "dev": 60})
    make_unlabelled(folder)
    make_encoder(folder / "encoder.pt")
    return folder
