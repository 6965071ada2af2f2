"""Balanced assignment compiled for CPUs.

This module loads the libraries that `setup.py` builds from `assignment.cpp`, if any.

`BUILDS` has the libraries that this machine can run, the fastest first, by torch's names of
instruction sets. ATEN_CPU_CAPABILITY (`avx2`, `default`) excludes faster ones.
"""

import ctypes
import sysconfig
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from fairseq_mtmoe.moe.assignment.torch_form import Assignment
from fairseq_mtmoe.moe.device_kind import is_on_cpu

Assign = Callable[[int, int, int, int | None, int, int], int]

LIBRARIES = {"AVX512": "_assignment_avx512", "AVX2": "_assignment_avx2", "DEFAULT": "_assignment"}


def assign(
    scores_TN: Tensor, build: Assign | None = None, start_N: Tensor | None = None
) -> Assignment | None:
    """Compute the optimal `priced_assignment` in one thread, without Python's lock.

    A build gives the same result for the same scores. `build` is one of `BUILDS`, by default the
    fastest. Returns None if torch must compute it: without a library, on another device, if
    scores are not finite, exceed 1e30 or differ by less than 1e-30 on average, or if memory is
    short.
    """
    build = build or next(iter(BUILDS.values()), None)
    if build is None or not is_on_cpu(scores_TN):
        return None
    scores_TN = scores_TN.detach().float().contiguous()
    num_tokens, num_experts = scores_TN.shape
    expert_T = torch.empty(num_tokens, dtype=torch.long, device="cpu")
    price_N = torch.empty(num_experts, device="cpu")
    start = None
    if start_N is not None:
        start_N = start_N.detach().float().contiguous()
        assert start_N.shape == price_N.shape and start_N.device == price_N.device
        start = start_N.data_ptr()
    outcome = build(
        scores_TN.data_ptr(),
        num_tokens,
        num_experts,
        start,
        expert_T.data_ptr(),
        price_N.data_ptr(),
    )
    return Assignment(expert_T, price_N) if outcome == 0 else None


def load_builds(folder: Path, capability: str) -> dict[str, Assign]:
    """Return a folder's libraries for a processor's capability, the fastest first."""
    names = list(LIBRARIES)
    runnable = names[names.index(capability) :] if capability in names else names[-1:]
    builds = {
        name: load(folder / f"{LIBRARIES[name]}{sysconfig.get_config_var('EXT_SUFFIX')}")
        for name in runnable
    }
    return {name: function for name, function in builds.items() if function is not None}


def load(library: Path) -> Assign | None:
    """Return a library's `mtmoe_priced_assignment` (see assignment.cpp)."""
    try:
        function = ctypes.CDLL(str(library)).mtmoe_priced_assignment
    except OSError:  # not built, or for another machine
        return None
    except AttributeError:
        warnings.warn(
            f"`{library}` must be of this version of fairseq_mtmoe, but is of another, and is not "
            "used; install the package again to build it, which makes balanced assignment ten "
            "times as fast.",
            stacklevel=2,
        )
        return None
    pointer = ctypes.c_void_p
    number = ctypes.c_int64
    function.argtypes = [pointer, number, number, pointer, pointer, pointer]
    function.restype = ctypes.c_int
    return function


BUILDS = load_builds(Path(__file__).parent, torch.backends.cpu.get_cpu_capability())
