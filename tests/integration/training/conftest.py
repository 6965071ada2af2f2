"""Data that the tests of this folder train on, and leave as it is."""

import pytest

from tests.helpers.benchmark import make_benchmark, make_encoder
from tests.helpers.digits import digit_fixture

corpus = digit_fixture(train=200, valid=8, test=4)


@pytest.fixture(scope="session")
def benchmark(tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmark")
    make_benchmark(folder, {"train": 32, "dev": 8})
    make_encoder(folder / "encoder.pt")
    return folder
