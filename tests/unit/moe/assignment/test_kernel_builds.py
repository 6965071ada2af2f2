"""Which build of the compiled assignment is taken, and that every build is right, also those for other machines."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from fairseq_mtmoe.moe.assignment import kernels
from tests.unit.moe.assignment.made_scores import EXACT_GAP, KINDS, assert_fair, best_of, gap, make, random_scores

COMPILER = shutil.which(os.environ.get("CXX", "c++"))
IS_X86 = platform.machine().lower() in ("x86_64", "amd64")
CAPABILITY = torch.backends.cpu.get_cpu_capability()


@pytest.mark.skipif(COMPILER is None, reason="needs a compiler")
def test_the_fastest_build_that_the_machine_can_run_is_there():
    assert kernels.BUILDS, "there is no compiled assignment: `pip install -e .` builds it"
    if IS_X86 and CAPABILITY in kernels.LIBRARIES:
        assert next(iter(kernels.BUILDS)) == CAPABILITY


@pytest.mark.parametrize(("capability", "first"), [("AVX512", 0), ("AVX2", 1), ("DEFAULT", 2), ("SVE256", 2)])
def test_a_processor_gets_what_it_can_run(monkeypatch, tmp_path, capability, first):
    monkeypatch.setattr(kernels, "load", lambda path: path.name)
    assert list(kernels.load_builds(tmp_path, capability)) == ["AVX512", "AVX2", "DEFAULT"][first:]


def test_without_a_library_for_the_machine_and_this_version_torch_has_to_do_it(monkeypatch, tmp_path):
    (tmp_path / "foreign.so").write_bytes(b"\x7fELF of another machine")
    assert kernels.load(tmp_path / "foreign.so") is None
    monkeypatch.setattr(kernels, "BUILDS", kernels.load_builds(tmp_path, CAPABILITY))
    assert kernels.assign(make(random_scores, 100, 8)) is None
    with pytest.warns(UserWarning, match="libc10.so` must be of this version of fairseq_mtmoe"):
        assert kernels.load(Path(torch.__file__).parent / "lib" / "libc10.so") is None


# Vectors of other lengths than the machine's are slow there, and right: so those of AVX512 are tested without it.
@pytest.mark.skipif(COMPILER is None or os.name != "posix", reason="needs a compiler")
@pytest.mark.parametrize("lanes", [4, pytest.param(8, marks=pytest.mark.scheduled), 16])
def test_vectors_of_every_length_give_the_optimum(tmp_path, lanes):
    """Compiled with the compiler's warnings."""
    source = Path(kernels.__file__).with_name("assignment.cpp")
    library = tmp_path / f"{lanes}.so"
    flags = ["-std=c++17", "-O1", f"-DMTMOE_LANES={lanes}", "-Wall", "-Wextra", "-Werror", "-Wno-psabi"]
    subprocess.run([COMPILER, *flags, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    build = kernels.load(library)
    assert build is not None
    for kind in KINDS:
        scores = make(kind, 500, 16)
        expert = kernels.assign(scores, build).expert_T
        assert_fair(expert, 500, 16)
        assert gap(scores, expert, best_of(kind, 500, 16)) <= EXACT_GAP
