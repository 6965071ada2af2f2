"""For every test: one thread, the CPU also where there are GPUs, and nothing of a user's environment."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("TRITON_INTERPRET", "1")  # its kernels, too, on the CPU

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(params=["CPU", "GPU", "GPU_WITH_GROUPED_MM"])
def every_form(request):
    """Computations take the form for each kind of processor in turn, on a CPU's tensors."""
    from fairseq_mtmoe.moe.form import Form, form_everywhere

    with form_everywhere(Form[request.param]):
        yield Form[request.param]


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """A data directory in which three "languages" are digits copied, reversed and shifted."""
    from tests.helpers.digits import make_digit_corpus

    folder = tmp_path_factory.mktemp("digits")
    make_digit_corpus(folder)
    return folder
