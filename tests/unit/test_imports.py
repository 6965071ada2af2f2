"""Imports go one way: the layers of the house, read from the source."""

import ast
import subprocess
import sys
from pathlib import Path

import networkx
import pytest

PACKAGE = Path(__file__).parents[2] / "fairseq_mtmoe"

# Rooms, and those of the package that they may import from (themselves always; *: all). What is not here is an error.
# Every folder of `models/` that is not listed is a system; no system imports another.
FILES = "data/translation/file_names data/translation/tiers data/translation/recorded_sizes data/translation/languages"
DATA = f"data data/mixtures data/translation {FILES}"
LAYERS = "errors moe conditioning checkpoints slots"
BLOCKS = "backbones/blocks backbones/hugging_face backbones/sizes"
PIECES = "backbones/piece_models"
BACKBONES = "backbones/translation backbones/bert backbones/bert/model backbones/t5"
RULES = f"""
__init__ cli: *
errors known_warnings protocols backbones models data/translation/file_names data/translation/languages:
backbones/piece_models: io
io moe conditioning backbones/sizes optim: errors
data/sampling: errors io
data/translation/tiers: errors io
data/translation/recorded_sizes: errors io data/translation/file_names
data/corpora: io errors data/sampling {FILES}
analysis: io errors data/translation/tiers
checkpoints: protocols errors io moe optim
options: errors io moe conditioning
slots: protocols errors moe conditioning checkpoints options
backbones/blocks: errors moe conditioning slots
backbones/hugging_face: errors io checkpoints
backbones/translation: protocols {LAYERS} options backbones/blocks backbones/sizes
backbones/translation/pretrained: errors io checkpoints options backbones/hugging_face backbones/translation {PIECES} \
 {DATA}
backbones/bert: {LAYERS} io backbones/blocks backbones/hugging_face
backbones/bert/model: protocols errors conditioning options backbones/bert backbones/blocks backbones/sizes
backbones/t5: protocols errors io checkpoints slots backbones/translation {BLOCKS} {PIECES}
task_types: errors backbones/bert data/nlu
sparsify: errors moe checkpoints slots optim
models/*: {LAYERS} io options protocols {BLOCKS} {BACKBONES}
criterions: errors io moe slots options task_types
training: protocols errors io known_warnings moe checkpoints slots options sparsify optim data
fairseq_patches: protocols errors checkpoints data training
data: errors io
data/mixtures: errors data/sampling
data/nlu: errors io data/mixtures data/sampling
data/translation: errors io data data/mixtures data/sampling {FILES}
evaluation: protocols errors io options moe backbones/bert backbones/translation checkpoints task_types {DATA} data/nlu
tasks: criterions tasks/glue tasks/text_to_text tasks/translation
tasks/_multitask: protocols errors options checkpoints analysis moe slots data data/mixtures data/sampling
tasks/_benchmark: protocols errors io options analysis checkpoints task_types tasks/_multitask data/mixtures data/nlu
tasks/glue: errors checkpoints slots task_types criterions tasks/_benchmark backbones/bert backbones/bert/model data/nlu
tasks/text_to_text: errors options checkpoints slots task_types tasks/_benchmark tasks/_multitask evaluation \
 backbones/t5 data/nlu
tasks/translation: protocols errors io options checkpoints moe slots sparsify criterions tasks/_multitask analysis \
 evaluation {DATA}
"""
PAIRS = (line.split(":") for line in RULES.split("\n")[1:-1])
MAY_IMPORT = {room: set(others.split()) for rooms, others in PAIRS for room in rooms.split()}
NO_FAIRSEQ = (
    "errors protocols io moe conditioning slots backbones/blocks backbones/bert data/sampling data/corpora analysis"
)


def room_of(dotted: str) -> str:
    """The longest room in the table that a dotted module name lies in, a system's folder, or the name itself."""
    path = dotted.replace(".", "/") or "__init__"
    parts = path.split("/")
    found = max((room for room in MAY_IMPORT if f"{path}/".startswith(f"{room}/")), key=len, default=path)
    return "/".join(parts[:2]) if found == "models" and len(parts) > 1 else found


def imported_modules(file: Path) -> set[str]:
    """Dotted names of what a file imports, also inside functions; a module that is taken from its folder by its own."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute, so that the rule can read them"
            names = {f"{node.module}.{name.name}" for name in node.names} - {"fairseq_mtmoe.__version__"}
            found.update(name if is_ours(name) else str(node.module) for name in names)
        elif isinstance(node, ast.Import):
            found.update(name.name for name in node.names)
    return found


def is_ours(module: str) -> bool:
    path = PACKAGE.parent.joinpath(*module.split("."))
    return module.startswith("fairseq_mtmoe.") and (path.is_dir() or path.with_suffix(".py").exists())


def modules() -> list[tuple[str, Path]]:
    return [(".".join(file.relative_to(PACKAGE).with_suffix("").parts), file) for file in PACKAGE.rglob("*.py")]


def wrong_imports(modules: list[tuple[str, Path]]) -> list[str]:
    wrong = []
    for name, file in modules:
        here = room_of(name.removesuffix("__init__").removesuffix("."))
        may = MAY_IMPORT.get("models/*" if here.startswith("models/") else here)
        if may is None:
            wrong.append(f"{name}: nothing says what {here} may import")
            continue
        for module in imported_modules(file):
            if module.partition(".")[0] == "fairseq_mtmoe":
                there = room_of(module.removeprefix("fairseq_mtmoe").removeprefix("."))
                if may.isdisjoint((there, "*")) and there != here:
                    wrong.append(f"{name} imports {module}")
    return wrong


def test_imports_go_one_way_between_rooms_that_are_there():
    assert wrong_imports(modules()) == []
    rooms = MAY_IMPORT.keys() - {"models/*"}
    assert [room for room in rooms if not (PACKAGE / room).is_dir() and not (PACKAGE / f"{room}.py").exists()] == []


@pytest.mark.parametrize(("name", "imports"), [
    ("models.mt_tag.model", "fairseq_mtmoe.models.base_sparse.model"),  # another system
    ("moe.layer", "fairseq_mtmoe.data.translation.tiers"),
    ("attic.old", "fairseq_mtmoe.errors"),  # a folder that nobody listed
    ("training.launch", "fairseq_mtmoe"),  # which imports everything
])  # fmt: skip
def test_the_rule_is_closed(name, imports, tmp_path):
    file = tmp_path / "module.py"
    file.write_text(f"import {imports}\n")
    assert len(wrong_imports([(name, file)])) == 1


def test_no_module_imports_itself_by_way_of_others():
    graph, prefix = networkx.DiGraph(), "fairseq_mtmoe."
    for name, file in modules():
        found = {module.removeprefix(prefix) for module in imported_modules(file) if module.startswith(prefix)}
        graph.add_edges_from((name.removesuffix(".__init__"), module) for module in found)
    assert [part for part in networkx.strongly_connected_components(graph) if len(part) > 1] == []


@pytest.mark.parametrize("room", NO_FAIRSEQ.split())
def test_pure_rooms_do_not_import_fairseq(room):
    files = [file for name, file in modules() if room_of(name) == room]
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
    """On a GPU node from a clone, but for the parts that say so."""
    folder = PACKAGE.parent / "benchmarks"
    modules = [f"gpu_check.{name}" for name in ("__main__", "run_part", "layer", "assignment", "processes")]
    found = packages_beside_torch(", ".join(modules), str(folder))
    assert found == {"fairseq_mtmoe", "gpu_check", "timing", "layer_systems", "assignment_scores"}
