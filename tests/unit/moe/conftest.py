"""The tests of the layers compute where `--device` says."""

import pytest
import torch

from tests.helpers.on_device import NOT_HERE, on_device


@pytest.fixture(autouse=True)
def _device(request):
    option = request.config.getoption("--device")
    if option != "cpu" and request.path.name in NOT_HERE:
        pytest.skip(NOT_HERE[request.path.name])
    if option != "cpu" and "pretended_gpu" in request.function.__code__.co_names:
        pytest.skip("it pretends a GPU of its own")
    with on_device(option):
        yield


@pytest.fixture
def device(_device):
    """What a tensor of the test's says of its device: `cpu` or `cuda`."""
    return torch.empty(0).device.type


@pytest.fixture
def set_default_dtype():
    yield torch.set_default_dtype
    torch.set_default_dtype(torch.float32)
