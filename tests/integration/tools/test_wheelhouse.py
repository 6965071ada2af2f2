"""Which packages go into which folder of a wheelhouse, and what is changed in fairseq on the way."""

import ast
import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from setuptools import Distribution, Extension

from tools import wheelhouse


def split(*lines):
    return wheelhouse.split([Requirement(line) for line in lines])


def test_pictures_dictionaries_and_tests_are_optional_and_what_brings_torch_is_left_out():
    needed, optional = split(
        "numpy>=1.26", "torch>=2.6", "sacrebleu[ja,ko]>=2.4", "altair>=6", "torchaudio", "Cython",
        'pytest>=8; extra == "test"', 'Django>=5; extra == "demo"', 'transformers; extra == "bench"',
        'peft>=0.17; extra == "test"', 'tomli; python_version < "3.11"', 'click>=8.1; python_version >= "3.11"',
        "numpy>=1.26",
    )  # fmt: skip
    assert needed == ["numpy>=1.26", "sacrebleu>=2.4", "click>=8.1"]
    assert optional == ["sacrebleu[ja,ko]>=2.4", "altair>=6", "pytest>=8", "Django>=5"]


def test_optional_packages_are_imported_when_they_are_used():
    lines = [line for name in ("fairseq_mtmoe", "fairseq-fixed") for line in importlib.metadata.requires(name)]
    needed, optional = ({canonicalize_name(Requirement(line).name) for line in folder} for folder in split(*lines))
    assert not needed & {"torch", "scipy", *wheelhouse.OPTIONAL}
    names = {"scikit-learn": "sklearn", "vl-convert-python": "vl_convert"}
    optional = {names.get(name, name.replace("-", "_")) for name in optional - needed} | {"scipy"}
    assert {"altair", "vl_convert", "sklearn", "tokenizers", "safetensors"} <= optional
    package = wheelhouse.CLONE / "fairseq_mtmoe"
    files = [path for path in package.rglob("*.py") if path.parent != package / "report" / "charts"]
    assert {path.name: imported_at_once(path) & optional for path in files if imported_at_once(path) & optional} == {}


def imported_at_once(path):
    body = ast.parse(path.read_text(encoding="utf-8")).body
    plain = {name.name.split(".")[0] for node in body if isinstance(node, ast.Import) for name in node.names}
    return plain | imported_in_any_case(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", wheelhouse.SCIENTIFIC)
def test_fairseq_is_imported_without_scikit_learn_and_scipy(name, tmp_path):
    module = tmp_path / "module.py"
    source = Path(importlib.util.find_spec("fairseq").origin).with_name(name.partition("/")[0]) / Path(name).name
    before = source.read_text(encoding="utf-8")
    if not imported_in_any_case(before) & {"sklearn", "scipy"}:
        pytest.skip("this fairseq came from a wheelhouse")
    module.write_text(before, encoding="utf-8")
    wheelhouse.make_science_optional(module)
    gone = imported_in_any_case(before) - imported_in_any_case(module.read_text())
    assert {"sklearn"} <= gone <= {"sklearn", "scipy"}
    with pytest.raises(AssertionError, match="no longer imports"):
        wheelhouse.make_science_optional(module)


def imported_in_any_case(text):
    """Packages that a module's first level imports `from`; what `try` holds may fail."""
    absolute = [node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom) and not node.level]
    return {node.module.split(".")[0] for node in absolute}


def test_fairseq_is_built_without_what_is_bound_to_one_torch():
    path = wheelhouse.TOOLS / "without_torch/torch/utils/cpp_extension.py"
    spec = importlib.util.spec_from_file_location("stand_in", path)
    stand_in = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stand_in)
    extensions = [Extension("libbleu", ["a.cpp"]), stand_in.CppExtension(name="libbase", sources=["b.cpp"])]
    command = stand_in.BuildExtension(Distribution({"ext_modules": extensions}))
    command.finalize_options()
    assert [extension.name for extension in command.extensions] == ["libbleu"]


def test_a_folder_that_exists_is_refused(tmp_path):
    (tmp_path / "wheels-optional").mkdir()
    command = [sys.executable, wheelhouse.__file__, str(tmp_path / "wheels")]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 1 and run.stderr.startswith(f"`{tmp_path}/wheels-optional` must not exist yet")
