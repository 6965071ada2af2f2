"""Imports go one way: the layers of the house, read from the source."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import networkx
import pytest

from fairseq_mtmoe import systems

PACKAGE = Path(__file__).parents[2] / "fairseq_mtmoe"

# Rooms, and those of the package that they may import from (themselves always; *: all). What is not here is an error.
# A system that is not listed may import from the rooms of `systems`; no system imports another.
NAMES = "translation/data/file_names translation/data/languages translation/data/recorded_sizes"
LAYERS = "core moe conditioning checkpoints slots"
SIZES = "core/sizes core/transformer_options"
SYSTEMS = f"{LAYERS} {SIZES} translation/model nlu/bert nlu/bert/model nlu/t5"
RULES = f"""
__init__ cli: *
core translation nlu translation/data/file_names translation/data/languages:
core/sizes core/transformer_options moe conditioning report multitask/sampling: core
translation/data/recorded_sizes: core translation/data/file_names
checkpoints: core moe
slots: core moe conditioning checkpoints
training: core moe checkpoints slots
multitask/mixtures: core multitask/sampling
multitask: core moe checkpoints slots report training multitask/mixtures multitask/sampling
corpora: core multitask/sampling {NAMES}
translation/data: core training multitask/mixtures {NAMES}
translation/model: core moe conditioning slots {SIZES}
translation/pretrained: core core/transformer_options checkpoints translation/data {NAMES} translation/model
translation/criterion: core moe slots training
translation/decode: core moe checkpoints training translation/data {NAMES} translation/model
translation/task: core core/transformer_options moe checkpoints slots report training multitask multitask/mixtures \
 translation/criterion translation/data {NAMES} translation/decode
nlu/bert: {LAYERS}
nlu/bert/model: core conditioning slots {SIZES} nlu/bert
nlu/t5: core core/sizes checkpoints slots translation/model
nlu/data: core multitask/mixtures multitask/sampling
nlu/types: core nlu/bert nlu/data
nlu/criterion: core slots nlu/types
nlu/predictor: core moe multitask/mixtures translation/decode nlu/data nlu/types
nlu/task: core checkpoints slots report multitask multitask/mixtures translation/decode \
 nlu/bert nlu/bert/model nlu/t5 nlu/data nlu/types nlu/criterion
systems: {SYSTEMS}
pemt: {SYSTEMS} training nlu/criterion
"""
PAIRS = (line.split(":") for line in RULES.split("\n")[1:-1])
MAY_IMPORT = {room: set(others.split()) for rooms, others in PAIRS for room in rooms.split()}
SYSTEM_FOLDERS = {name.replace(".", "/") for name in systems()}
NO_FAIRSEQ = "core moe conditioning slots report multitask/sampling corpora nlu/bert"


def room_of(dotted: str) -> str:
    """The longest room in the table or system's folder that a dotted module name lies in, or the name itself."""
    path = dotted.replace(".", "/") or "__init__"
    rooms = MAY_IMPORT.keys() | SYSTEM_FOLDERS
    return max((room for room in rooms if f"{path}/".startswith(f"{room}/")), key=len, default=path)


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
        may = MAY_IMPORT.get("systems" if here in SYSTEM_FOLDERS - MAY_IMPORT.keys() else here)
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
    rooms = MAY_IMPORT.keys() - {"systems"}
    assert [room for room in rooms if not (PACKAGE / room).is_dir() and not (PACKAGE / f"{room}.py").exists()] == []


@pytest.mark.parametrize(("name", "imports"), [
    ("nlu.mt_tag.model", "fairseq_mtmoe.translation.base_sparse.model"),  # another system
    ("moe.layer", "fairseq_mtmoe.slots.slot"),
    ("attic.old", "fairseq_mtmoe.core.errors"),  # a folder that nobody listed
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


def test_top_folders_have_no_circle_and_at_most_ten_floors():
    graph, prefix = networkx.DiGraph(), "fairseq_mtmoe."
    for name, file in modules():
        found = {module.removeprefix(prefix) for module in imported_modules(file) if module.startswith(prefix)}
        graph.add_edges_from((name.partition(".")[0], module.partition(".")[0]) for module in found)
    graph.remove_node("__init__")
    graph.remove_edges_from([*networkx.selfloop_edges(graph)])
    assert networkx.is_directed_acyclic_graph(graph)
    assert len(networkx.dag_longest_path(graph)) <= 10


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
    modules = [f"fairseq_mtmoe.{name}" for name in ("moe", "slots.plan", "slots.slot")]
    assert packages_beside_torch(", ".join(modules)) == {"fairseq_mtmoe"}


def test_the_gpu_check_needs_torch_alone():
    """On a GPU node from a clone, but for the parts that say so."""
    folder = PACKAGE.parent / "benchmarks"
    modules = [f"gpu_check.{name}" for name in ("__main__", "run_part", "layer", "assignment", "processes")]
    found = packages_beside_torch(", ".join(modules), str(folder))
    assert found == {"fairseq_mtmoe", "gpu_check", "timing", "layer_systems", "assignment_scores"}


@pytest.mark.parametrize("room", ["multitask/mixtures", "multitask/sampling", "multitask"])
def test_what_tasks_of_all_kinds_share_knows_nothing_of_languages(room):
    for file in (PACKAGE / room).glob("*.py"):
        code = re.sub(r'""".*?"""|#[^\n]*', "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert not re.findall(r"(?<![a-z])(?:langs?|languages?|pairs?|sources?|targets?|tiers?)(?![a-z])", code), file


def test_nobody_else_asks_where_a_tensor_is():
    asking = re.compile(r"is_cuda|device\.type\s*(==|!=|in\b|not in\b)|cuda\.is_available|get_device_capability")
    files = [file.name for file in (PACKAGE / "moe").rglob("*.py") if asking.search(file.read_text(encoding="utf-8"))]
    assert files == ["device_kind.py"]
