"""Imports go one way: the layers of the house, read from the source."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "fairseq_mtmoe"

# A place -> the places of the package that it may import from (itself always).
MAY_IMPORT = {
    "errors": set(),
    "files": {"errors"},
    "moe": {"errors"},
    "data/sampling": {"errors"},
    "data/tiers": {"errors", "files"},
    "data/corpora": {"errors", "files", "data/tiers", "data/sampling"},
    "analysis": {"errors", "files", "data/tiers"},
    "checkpoints": {"errors", "files", "moe"},
    "options": {"errors"},
    "slots": {"errors", "moe", "checkpoints"},
    "backbones/translation": {"errors", "moe", "checkpoints", "slots", "options"},
    "sparsify": {"errors", "moe", "checkpoints", "slots", "optim", "models/base_sparse"},
    "models/base_sparse": {"errors", "moe", "checkpoints", "slots", "options", "backbones/translation"},
    "criterions": {"errors", "moe"},
    "optim": {"errors", "checkpoints"},
    "training": {"errors", "files", "moe", "checkpoints", "slots", "sparsify"},
    "data": {"errors", "files", "data/sampling", "data/tiers"},
    "evaluation": {"errors", "files", "moe", "checkpoints", "data", "data/tiers"},
    "tasks": {*("errors", "files", "moe", "data", "data/sampling", "data/tiers", "analysis", "criterions", "slots")},
}
NO_FAIRSEQ = ("errors", "files", "moe", "data/sampling", "analysis")


def place_of(dotted: str) -> str:
    """The longest place in the table that a dotted module name lies in."""
    path = dotted.replace(".", "/")
    return max((place for place in MAY_IMPORT if f"{path}/".startswith(f"{place}/")), key=len, default=path)


def imported_modules(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found.update(name.name for name in node.names)
    return found


def modules() -> list[tuple[str, Path]]:
    return [(".".join(file.relative_to(PACKAGE).with_suffix("").parts), file) for file in PACKAGE.rglob("*.py")]


def test_imports_go_one_way():
    wrong = []
    for name, file in modules():
        here = place_of(name.removesuffix(".__init__"))
        if here not in MAY_IMPORT:
            continue  # cli and the package's own __init__ may use everything
        for module in imported_modules(file):
            if module.startswith("fairseq_mtmoe."):
                there = place_of(module.removeprefix("fairseq_mtmoe."))
                if there != here and there not in MAY_IMPORT[here]:
                    wrong.append(f"{name} imports {module}")
    assert not wrong


@pytest.mark.parametrize("place", NO_FAIRSEQ)
def test_pure_places_do_not_import_fairseq(place):
    files = [PACKAGE / f"{place}.py"] if (PACKAGE / f"{place}.py").exists() else list((PACKAGE / place).rglob("*.py"))
    assert files
    assert not [file for file in files for module in imported_modules(file) if module.split(".")[0] == "fairseq"]


def test_the_core_needs_torch_alone():
    forbidden = ("fairseq", "omegaconf", "hydra", "sacrebleu", "scipy", "matplotlib", "sentencepiece")
    code = f"import sys, fairseq_mtmoe.moe; print([n for n in {forbidden} if n in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_layers_package_needs_no_fairseq():
    code = "import sys, fairseq_mtmoe.moe; print('fairseq' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
