"""Balanced assignment compiled for CPUs: loads what `setup.py` builds from `assignment.cpp`, if it is there."""

from __future__ import annotations

import ctypes
import sysconfig
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

LIBRARY = Path(__file__).with_name("_assignment" + str(sysconfig.get_config_var("EXT_SUFFIX")))


def assign(scores_TN: Tensor) -> Tensor | None:
    """The expert of each token, (T,): ⌊T/N⌋ or ⌈T/N⌉ tokens for every expert, and the highest sum of scores.

    The gap to the optimum is what float32 rounds: at most 1e-6 of the sum over tokens of highest - lowest score. The
    same scores give the same answer. Other Python threads run meanwhile; the work itself takes one thread.

    Args:
        scores_TN: how well token and expert fit.

    Returns None where torch has to do it: without a compiled library, on another device, for float64, for scores that
    are not finite or larger than 1e30, for such as differ by less than 1e-30 on average, and if memory is short.
    """
    if _assignment is None or scores_TN.device.type != "cpu" or scores_TN.dtype == torch.float64:
        return None
    scores_TN = scores_TN.detach().float().contiguous()
    num_tokens, num_experts = scores_TN.shape
    expert_T = torch.empty(num_tokens, dtype=torch.long, device="cpu")
    outcome = _assignment(scores_TN.data_ptr(), num_tokens, num_experts, expert_T.data_ptr())
    return expert_T if outcome == 0 else None


def _load() -> Callable[[int, int, int, int], int] | None:
    """The function `mtmoe_balanced_assignment(scores, T, N, experts)`; ctypes lets go of Python's lock around it."""
    try:
        function = ctypes.CDLL(str(LIBRARY)).mtmoe_balanced_assignment
    except (OSError, AttributeError):  # not built, or for another machine
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function


_assignment = _load()
