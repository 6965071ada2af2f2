"""Balanced assignment compiled for CPUs: loads what `setup.py` builds from `assignment.cpp`, if it is there.

There is a library for each length of vectors that processors have. `BUILDS` has those that this machine can run, the
fastest first, by torch's names of instruction sets; torch's ATEN_CPU_CAPABILITY (`avx2`, `default`) leaves faster ones
out.
"""

from __future__ import annotations

import ctypes
import sysconfig
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

Assign = Callable[[int, int, int, int], int]

LIBRARIES = {"AVX512": "_assignment_avx512", "AVX2": "_assignment_avx2", "DEFAULT": "_assignment"}


def assign(scores_TN: Tensor, build: Assign | None = None) -> Tensor | None:
    """The expert of each token, (T,): ⌊T/N⌋ or ⌈T/N⌉ tokens for every expert, and the highest sum of scores.

    The gap to the optimum is what float32 rounds: at most 1e-6 of the sum over tokens of highest - lowest score. The
    same scores give the same answer, with the same build. Other Python threads run meanwhile; the work itself takes one
    thread.

    Args:
        scores_TN: how well token and expert fit.
        build: one of `BUILDS`; by default the fastest.

    Returns None where torch has to do it: without a compiled library, on another device, for float64, for scores that
    are not finite or larger than 1e30, for such as differ by less than 1e-30 on average, and if memory is short.
    """
    build = build or next(iter(BUILDS.values()), None)
    if build is None or scores_TN.device.type != "cpu" or scores_TN.dtype == torch.float64:
        return None
    scores_TN = scores_TN.detach().float().contiguous()
    num_tokens, num_experts = scores_TN.shape
    expert_T = torch.empty(num_tokens, dtype=torch.long, device="cpu")
    outcome = build(scores_TN.data_ptr(), num_tokens, num_experts, expert_T.data_ptr())
    return expert_T if outcome == 0 else None


def load_builds(folder: Path, capability: str) -> dict[str, Assign]:
    """The libraries of a folder that a processor of this capability (torch's word) can run, the fastest first."""
    names = list(LIBRARIES)
    runnable = names[names.index(capability) :] if capability in names else names[-1:]
    found = {name: load(folder / f"{LIBRARIES[name]}{sysconfig.get_config_var('EXT_SUFFIX')}") for name in runnable}
    return {name: function for name, function in found.items() if function is not None}


def load(library: Path) -> Assign | None:
    """A library's `mtmoe_balanced_assignment(scores, T, N, experts)`; ctypes lets go of Python's lock around it."""
    try:
        function = ctypes.CDLL(str(library)).mtmoe_balanced_assignment
    except (OSError, AttributeError):  # not built, or for another machine
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function


BUILDS = load_builds(Path(__file__).parent, torch.backends.cpu.get_cpu_capability())
