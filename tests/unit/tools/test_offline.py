"""`make install WHEELHOUSE=…`: what is refused and why, and an environment that uses the torch that is there."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from fairseq_mtmoe import __version__
from tools import offline

THIS = f"cp3{sys.version_info.minor}"


def put_wheel(folder, version=__version__, tag=THIS):
    path = folder / f"fairseq_mtmoe-{version}-{tag}-{tag}-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as file:
        for name in ("_assignment.so", "assignment.cpp", "__init__.py"):
            file.writestr(offline.KERNELS + name, "new")
        file.writestr("fairseq_mtmoe/other.so", "new")
    return path


@pytest.mark.parametrize("wheel", [None, {"tag": "cp39"}, {"version": "0.0.1"}])
def test_the_wheel_is_for_this_python_and_clone(wheel, tmp_path):
    if wheel is not None:
        put_wheel(tmp_path, **wheel)
    with pytest.raises(SystemExit, match=r"^`(WHEELHOUSE|PYTHON)` must be "):
        offline.find_wheel(tmp_path)
    (tmp_path / "right").mkdir()
    right = put_wheel(tmp_path / "right")
    assert offline.find_wheel(tmp_path / "right") == right


@pytest.mark.parametrize("script", ["echo 2.5.1; echo /x/__init__.py", "echo 'ImportError: libcudart.so' >&2; exit 1"])
def test_an_old_torch_and_one_that_fails_are_refused(script, tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(SystemExit, match=r"^`PYTHON` must be a Python that imports torch"):
        offline.torch_to_use(is_in_wheelhouse=False)
    assert offline.torch_to_use(is_in_wheelhouse=True) is None
    new, old = ("2.6.0a0+ecf3bae40a.nv25.1", "2.13.0+cu130", "3.0"), ("2.5.1+cu124", "1.13.1")
    assert all(map(offline.is_new_enough, new)) and not any(map(offline.is_new_enough, old))


def test_only_kernels_are_unpacked_into_the_clone(tmp_path):
    used = tmp_path / offline.KERNELS / "_assignment.so"
    used.parent.mkdir(parents=True)
    used.write_text("old")
    with open(used) as held:  # as a run holds the library that it has loaded
        offline.unpack_kernels(put_wheel(tmp_path), tmp_path)
        assert held.read() == "old" and used.read_text() == "new"
    unpacked = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(unpacked)[1:] == [f"{offline.KERNELS}_assignment.so"]


@pytest.mark.scheduled
def test_an_environment_sees_the_torch_that_is_there_and_installs_from_the_folder_alone(tmp_path, monkeypatch):
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("tiny.py", "import torch\nprint(torch.__file__)\n")
        file.writestr("tiny-1.0.dist-info/METADATA", "Name: tiny\nVersion: 1.0\n")
        file.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("tiny-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    python = offline.make_environment(tmp_path / "environment", offline.torch_to_use(is_in_wheelhouse=False))
    offline.pip_install(python, [tmp_path], "tiny")
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = subprocess.run([python, "-m", "tiny"], capture_output=True, text=True, env=clean, check=True)
    assert Path(run.stdout.strip()) == Path(torch.__file__)
    with pytest.raises(subprocess.CalledProcessError):  # what no folder has comes from nowhere else
        offline.pip_install(python, [tmp_path], "six==1.16.0")
