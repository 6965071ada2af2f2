"""Imports go one way: the layers of the house, read from the source."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "fairseq_mtmoe"

EVERYTHING = {"*"}

# A place -> the places of the package that it may import from (itself always). A folder that is not here is an error.
MAY_IMPORT = {
    "__init__": EVERYTHING,
    "cli": EVERYTHING,
    "errors": set(),
    "known_warnings": set(),
    "protocols": set(),
    "io": {"errors"},
    "moe": {"errors"},
    "conditioning": {"errors"},
    "data/sampling": {"errors"},
    "data/translation/file_names": set(),
    "data/translation/tiers": {"errors", "io"},
    "data/translation/recorded_sizes": {"errors", "io", "data/translation/file_names"},
    "data/corpora": {
        *("io", "errors", "data/sampling"),
        *("data/translation/file_names", "data/translation/tiers", "data/translation/recorded_sizes"),
    },
    "analysis": {"io", "errors", "data/translation/tiers"},
    "checkpoints": {"protocols", "errors", "io", "moe", "optim"},
    "options": {"errors", "moe", "conditioning"},
    "slots": {"errors", "moe", "conditioning", "checkpoints", "options"},
    "backbones": set(),
    "backbones/blocks": {"errors", "moe", "conditioning", "slots"},
    "backbones/hugging_face": {"errors", "io", "checkpoints"},
    "backbones/sizes": {"errors"},
    "backbones/translation": {
        *("errors", "moe", "conditioning", "checkpoints", "slots", "options", "backbones/blocks", "backbones/sizes"),
    },
    "backbones/bert": {
        *("errors", "io", "moe", "conditioning", "checkpoints", "slots"),
        *("backbones/blocks", "backbones/hugging_face"),
    },
    "backbones/bert/model": {
        *("protocols", "errors", "conditioning", "options", "backbones/bert", "backbones/blocks", "backbones/sizes"),
    },
    "backbones/t5": {
        *("errors", "io", "checkpoints", "slots"),
        *("backbones/blocks", "backbones/hugging_face", "backbones/sizes", "backbones/translation"),
    },
    "task_types": {"errors", "backbones/bert", "data/nlu"},
    "sparsify": {"errors", "moe", "checkpoints", "slots", "optim"},
    "models": set(),
    "criterions": {"errors", "moe", "slots", "task_types"},
    "optim": {"errors"},
    "training": {
        *("protocols", "errors", "io", "known_warnings", "moe", "checkpoints", "slots", "sparsify", "optim"),
    },
    "fairseq_patches": {"errors", "checkpoints", "data", "training"},
    "data": {"protocols", "errors", "io"},
    "data/mixtures": {"errors", "data/sampling"},
    "data/nlu": {"errors", "io", "data/mixtures", "data/sampling"},
    "data/translation": {
        *("errors", "io", "data", "data/mixtures", "data/sampling"),
        *("data/translation/file_names", "data/translation/tiers", "data/translation/recorded_sizes"),
    },
    "evaluation": {
        *("protocols", "errors", "io", "moe", "backbones/bert", "backbones/translation", "checkpoints", "task_types"),
        *("data", "data/mixtures", "data/nlu", "data/translation"),
        *("data/translation/file_names", "data/translation/recorded_sizes", "data/translation/tiers"),
    },
    "tasks": {"criterions", "tasks/glue", "tasks/text_to_text", "tasks/translation"},
    "tasks/_multitask": {
        *("protocols", "errors", "checkpoints", "analysis", "moe", "slots"),
        *("data", "data/mixtures", "data/sampling"),
    },
    "tasks/_benchmark": {
        *("protocols", "errors", "io", "analysis", "checkpoints", "task_types"),
        *("tasks/_multitask", "data/mixtures", "data/nlu"),
    },
    "tasks/glue": {
        *("errors", "slots", "task_types", "criterions"),
        *("tasks/_benchmark", "backbones/bert", "backbones/bert/model", "data/nlu"),
    },
    "tasks/text_to_text": {
        *("errors", "slots", "task_types", "tasks/_benchmark", "tasks/_multitask", "backbones/t5", "data/nlu"),
    },
    "tasks/translation": {
        *("protocols", "errors", "io", "slots", "criterions", "tasks/_multitask", "analysis", "evaluation"),
        *("data", "data/mixtures", "data/translation"),
        *("data/translation/file_names", "data/translation/recorded_sizes", "data/translation/tiers"),
    },
}
# Every folder of `models/` that is not listed is a system; no system imports another.
OF_A_SYSTEM = {
    *("errors", "io", "moe", "conditioning", "checkpoints", "slots", "options"),
    *("protocols", "backbones/blocks", "backbones/hugging_face", "backbones/sizes"),
    *("backbones/translation", "backbones/bert", "backbones/bert/model", "backbones/t5"),
}
NO_FAIRSEQ = (
    *("errors", "protocols", "io", "moe", "conditioning", "slots"),
    *("backbones/blocks", "backbones/bert", "data/sampling", "data/corpora", "analysis"),
)


def place_of(dotted: str) -> str:
    """The longest place in the table that a dotted module name lies in, a system's folder, or the name itself."""
    path = dotted.replace(".", "/") or "__init__"
    parts = path.split("/")
    found = max((place for place in MAY_IMPORT if f"{path}/".startswith(f"{place}/")), key=len, default=path)
    return "/".join(parts[:2]) if found == "models" and len(parts) > 1 else found


def allowed(place: str) -> set[str]:
    """What a place may import; KeyError where nobody said so."""
    return OF_A_SYSTEM if place.startswith("models/") and place not in MAY_IMPORT else MAY_IMPORT[place]


def imported_modules(file: Path) -> set[str]:
    """Dotted names of what a file imports, also inside functions; a module that is taken from its folder by its own."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute, so that the rule can read them"
            names = {f"{node.module}.{name.name}" for name in node.names} - {"fairseq_mtmoe.__version__"}
            found.update(name if is_module(name) else str(node.module) for name in names)
        elif isinstance(node, ast.Import):
            found.update(name.name for name in node.names)
    return found


def is_module(dotted: str) -> bool:
    """Whether this is a module or folder of the package."""
    path = PACKAGE.parent.joinpath(*dotted.split("."))
    return dotted.startswith("fairseq_mtmoe.") and (path.is_dir() or path.with_suffix(".py").exists())


def modules() -> list[tuple[str, Path]]:
    return [(".".join(file.relative_to(PACKAGE).with_suffix("").parts), file) for file in PACKAGE.rglob("*.py")]


def wrong_imports(modules: list[tuple[str, Path]]) -> list[str]:
    """What breaks the rule, or lies in a place that it does not know."""
    wrong = []
    for name, file in modules:
        here = place_of(name.removesuffix("__init__").removesuffix("."))
        try:
            may = allowed(here)
        except KeyError:
            wrong.append(f"{name}: nothing says what {here} may import")
            continue
        for module in imported_modules(file):
            if module.partition(".")[0] == "fairseq_mtmoe":
                there = place_of(module.removeprefix("fairseq_mtmoe").removeprefix("."))
                if there != here and there not in may and may is not EVERYTHING:
                    wrong.append(f"{name} imports {module}")
    return wrong


def test_imports_go_one_way():
    assert wrong_imports(modules()) == []


@pytest.mark.parametrize(
    ("name", "imports"),
    [
        ("models.mt_tag.model", "fairseq_mtmoe.models.base_sparse.model"),  # another system
        ("models.base_sparse.model", "fairseq_mtmoe.training.trainer"),
        ("moe.layer", "fairseq_mtmoe.data.translation.tiers"),
        ("attic.old", "fairseq_mtmoe.errors"),  # a folder that nobody listed
        ("models", "fairseq_mtmoe.moe"),
        ("training.rendezvous", "fairseq_mtmoe"),  # which imports everything
    ],
)
def test_the_rule_is_closed(name, imports, tmp_path):
    file = tmp_path / "module.py"
    file.write_text(f"import {imports}\n")
    assert len(wrong_imports([(name, file)])) == 1


def in_circles(imports: dict[str, set[str]]) -> set[str]:
    """What imports itself by way of others, and whatever lies between such: what is left without ends of the graph."""
    left = dict(imports)
    while ends := {n for n, to in left.items() if not to & left.keys() or not any(n in left[k] for k in left)}:
        left = {name: to for name, to in left.items() if name not in ends}
    return set(left)


def test_no_module_imports_itself_by_way_of_others():
    """At run time, inside functions and for types alike."""
    imports = {("fairseq_mtmoe." + name).removesuffix(".__init__"): imported_modules(file) for name, file in modules()}
    assert in_circles({name: found - {name} for name, found in imports.items()}) == set()
    assert in_circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": {"e"}, "e": set()}) == {"b", "c"}


def floors(imports: dict[str, set[str]], room: str) -> int:
    """How many rooms stand on each other below and with this one, in the longest chain of imports."""
    return 1 + max((floors(imports, below) for below in imports.get(room, ())), default=0)


def test_rooms_stand_on_ten_floors_at_most():
    """A room is what lies directly in the package; the package itself is above them all."""
    imports: dict[str, set[str]] = {}
    for name, file in modules():
        here = name.split(".")[0]
        below = {module.split(".")[1] for module in imported_modules(file) if module.startswith("fairseq_mtmoe.")}
        imports.setdefault(here, set()).update(below - {here})
    imports.pop("__init__")
    assert in_circles(imports) == set()
    assert 5 < max(floors(imports, room) for room in imports) <= 10


def test_the_table_names_only_what_is_there():
    assert [
        place for place in MAY_IMPORT if not ((PACKAGE / place).is_dir() or (PACKAGE / f"{place}.py").exists())
    ] == []


@pytest.mark.parametrize("place", NO_FAIRSEQ)
def test_pure_places_do_not_import_fairseq(place):
    files = [file for name, file in modules() if place_of(name) == place]
    assert files
    assert not [file for file in files for module in imported_modules(file) if module.split(".")[0] == "fairseq"]


def packages_beside_torch(imports: str, *folders: str) -> set[str]:
    """The packages that these imports bring along, beside torch, what torch brings along, and Python's own."""
    code = f"""
import sys, sysconfig, torch, numpy, torch._dynamo, torch.utils.flop_counter
sysconfig.get_config_vars()  # some versions of torch ask it later, and its data is in no list of Python's own modules
sys.path[:0] = {folders}
def packages():
    return {{name.partition(".")[0] for name in sys.modules}}
before = packages()
import {imports}
print(*packages() - before - sys.stdlib_module_names)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_layers_and_slots_need_torch_alone():
    modules = [f"fairseq_mtmoe.{name}" for name in ("moe", "moe.reference", "slots.plan", "slots.slot")]
    assert packages_beside_torch(", ".join(modules)) == {"fairseq_mtmoe"}


def test_the_gpu_check_needs_torch_alone():
    """On a GPU node from a clone: all parts can be imported, those that need more say so when they run."""
    folder = PACKAGE.parent / "benchmarks"
    modules = [f"gpu_check.{file.stem}" for file in (folder / "gpu_check").glob("*.py")]
    found = packages_beside_torch(", ".join(modules), str(folder))
    assert found == {"fairseq_mtmoe", "gpu_check", "timing", "layer_systems", "assignment_scores"}
