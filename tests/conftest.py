"""For every test: one thread, a CPU also where there are GPUs (unless asked), nothing of a user's environment."""

import gc
import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import hypothesis
import pytest
import torch

torch.set_num_threads(1)
# The same examples in every run: a change is judged by what it changes. New ones: `--hypothesis-profile default`.
hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.load_profile("same")


def pytest_addoption(parser):
    parser.addoption(
        "--device", default="cpu", choices=("cpu", "cuda", "pretended"),
        help="where tests/unit/moe computes; a pretended GPU is a CPU under a GPU's rules",
    )  # fmt: skip


def pytest_configure(config):
    if config.getoption("--device") != "cuda":
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
        os.environ.setdefault("TRITON_INTERPRET", "1")  # its kernels, too, on the CPU
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as where a script starts it with `&`
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
    gc.freeze()  # what the tests have imported is no garbage, and searching it for some takes a while


@pytest.fixture(params=["CPU", "GPU", "GPU_WITH_GROUPED_MM"])
def every_device_kind(request):
    """Computations take the form for each kind of processor in turn, on a CPU's tensors; a GPU takes its own alone."""
    from fairseq_mtmoe.moe.device_kind import DeviceKind, device_kind, device_kind_everywhere

    if request.config.getoption("--device") != "cpu" and DeviceKind[request.param] is not device_kind(torch.empty(0)):
        pytest.skip("it is not the form of this GPU")
    with device_kind_everywhere(DeviceKind[request.param]):
        yield DeviceKind[request.param]


def _of_the_zoo(name):
    """A fixture of a folder that `tests/helpers/zoo.py` makes."""

    def folder(tmp_path_factory):
        from tests.helpers.zoo import folder_of

        return folder_of(name, tmp_path_factory)

    return pytest.fixture(scope="session")(folder)


digits, many_digits, text_data, stock, benchmark = map(
    _of_the_zoo, ("digits", "many_digits", "text_data", "stock", "benchmark")
)
