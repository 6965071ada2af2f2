"""A run that several files' tests look at: each worker of the tests trains it once."""

import pytest

from tests.helpers.benchmark import make_benchmark, make_encoder, make_unlabelled, train_tasks, validate, validated


@pytest.fixture(scope="session")
def benchmark_data(tmp_path_factory):
    """A made benchmark, its test data without labels, and `encoder.pt`."""
    folder = tmp_path_factory.mktemp("benchmark")
    make_benchmark(folder, {"train": 300, "dev": 60})
    make_unlabelled(folder)
    make_encoder(folder / "encoder.pt")
    return folder


@pytest.fixture(scope="session")
def mixture(benchmark_data, tmp_path_factory):
    """The folder of a run that has learned all tasks; what it wrote is in `log.txt`."""
    folder = tmp_path_factory.mktemp("mixture")
    options = ("--init-encoder", benchmark_data / "encoder.pt", "--max-update", 300, "--validate-interval", 2)
    (folder / "log.txt").write_text(train_tasks(benchmark_data, folder, *options))
    return folder


@pytest.fixture(scope="session")
def figures(benchmark_data, mixture):
    """What `fairseq-validate` says of it."""
    return validated(validate(benchmark_data, mixture / "checkpoint_best.pt"))
