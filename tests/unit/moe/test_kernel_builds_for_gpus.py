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
    "*fp32": """below parts start both_before both_after price_before price_after price best loss scores logits gates
        grad_gates grad_loss pulls gate grad_gate grad_blend""",
    "*bf16": "rows grad blend out active grad_rows filled",
    "*i32": "chosen target leaves ends offsets",
    "*i64": "token_of row_of expert_of tasks",
    "*i8": "is_right",
    "*u8": "padding",
    "fp32": "temperature_before temperature uniform",
}
TYPES = {name: kind for kind, names in NAMES_OF.items() for name in names.split()}
SIZES = {
    "TOKENS": 64,
    "CHUNK": 128,
    "EXPERTS": 32,
    "PROGRAMS": 32,
    "COLUMNS": 128,
    "ROWS": 64,
    "SENTENCES": 128,
    "GROUPS": 8,
}
SIZES["LENGTH"] = 32
ASSIGNMENT, ROWS, GATES = "assignment.triton_kernels", "triton_rows", "triton_gates"
# Modules' kernels with the types that their names have there, and flags: all others are on.
KERNELS = [
    *(
        (ASSIGNMENT, name, {"shares": "*i32"}, {})
        for name in ["extremes", "spreads", "wish", "leave", "arrive", "find_left", "fill"]
    ),
    *(
        (ASSIGNMENT, "step", {}, {"IS_FIRST": is_first, "IS_LAST": is_last})
        for is_first, is_last in ((True, False), (False, False), (False, True))
    ),
    (ROWS, "_sorted", {}, {}),
    *(
        (ROWS, name, {}, {"HAS_BLEND": blend})
        for name in ("_combined", "_combined_backward")
        for blend in (True, False)
    ),
    (GATES, "_chosen", {"shares": "*fp32"}, {}),
    (GATES, "_balance", {}, {}),
    (GATES, "_chosen_backward", {"shares": "*fp32", "out": "*fp32"}, {}),
    (GATES, "_tasks", {"out": "*i64"}, {}),
    *(("grouped_matmul.triton_kernels", name, {}, {}) for name in ("_clear_kernel", "_fill_kernel", "_take_kernel")),
    *(("grouped_matmul.triton_kernels", "_sums_kernel", {}, {"HAS_ACTIVE": active}) for active in (True, False)),
]


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(("module", "name", "types", "flags"), KERNELS)
def test_a_kernel_compiles(module, name, types, flags, capability):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(import_module(f"fairseq_mtmoe.moe.{module}"), name)
    names = list(inspect.signature(kernel.fn).parameters)
    constants = {each: flags.get(each, SIZES.get(each, True)) for each in names if each.isupper()}
    signature = {each: "constexpr" if each in constants else types.get(each, TYPES.get(each, "i32")) for each in names}
    source = ASTSource(kernel, signature, {(names.index(each),): value for each, value in constants.items()})
    built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 8})
    assert len(built.asm["cubin"]) > 0
