"""Triton's compiler takes every kernel, for GPUs that are not here: the interpreter forgives more than it does.

`TRITON_INTERPRET=0 pytest tests/unit/moe/test_kernel_builds_for_gpus.py` runs it where Triton is installed.
"""

import inspect
import os
from importlib import import_module
from importlib.util import find_spec

import pytest

pytestmark = [
    pytest.mark.rare,  # a minute of a compiler
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "0", reason="kernels are interpreted"),
]

# What each argument is, by name; others are int32.
NAMES_OF = {
    "*fp32": "below parts start both_before both_after price_before price_after price best loss scores",
    "*i32": "chosen target leaves shares",
    "*i64": "expert_of",
    "*u8": "padding",
    "fp32": "temperature_before temperature",
}
TYPES = {name: kind for kind, names in NAMES_OF.items() for name in names.split()}
SIZES = {"TOKENS": 64, "CHUNK": 128, "EXPERTS": 32, "PROGRAMS": 32}
STEPS = [(True, False), (False, False), (False, True)]
KERNELS = [
    *((name, {}) for name in ("extremes", "spreads", "wish", "leave", "arrive", "find_left", "fill")),
    *(("step", {"IS_FIRST": is_first, "IS_LAST": is_last}) for is_first, is_last in STEPS),
]


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(("name", "flags"), KERNELS)
def test_a_kernel_compiles(name, flags, capability):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(import_module("fairseq_mtmoe.moe.assignment.triton_kernels"), name)
    names = list(inspect.signature(kernel.fn).parameters)
    constants = {each: flags.get(each, SIZES.get(each, True)) for each in names if each.isupper()}
    signature = {each: "constexpr" if each in constants else TYPES.get(each, "i32") for each in names}
    source = ASTSource(kernel, signature, {(names.index(each),): value for each, value in constants.items()})
    built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 8})
    assert len(built.asm["cubin"]) > 0
