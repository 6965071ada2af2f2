"""What is replaced in other packages: all of it is in the table, and fits the fairseq that is installed."""

import ast
import functools
import sys
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path

import pytest
from fairseq import checkpoint_utils
from fairseq.logging import metrics

import fairseq_mtmoe
from fairseq_mtmoe import register
from fairseq_mtmoe.fairseq_patches import patch as patches
from fairseq_mtmoe.fairseq_patches.patch import Patch, apply_to_commands, instead
from fairseq_mtmoe.fairseq_patches.table import PATCHES
from tests.helpers.refused import refused

PACKAGE = Path(fairseq_mtmoe.__file__).parent
OURS = "fairseq_mtmoe"

TARGETS = {
    "sys.excepthook",
    "fairseq.checkpoint_utils.load_checkpoint_to_cpu",
    "fairseq.checkpoint_utils.load_model_ensemble_and_task",
    "fairseq.checkpoint_utils.save_checkpoint",
    "fairseq.data.Dictionary.add_from_file",
    "fairseq.file_io.PathManager.copy",
    "fairseq.data.encoders.sentencepiece_bpe.SentencepieceBPE.__init__",
    "fairseq.dataclass.constants.LOG_FORMAT_CHOICES",
    "fairseq.distributed.utils.all_gather_list",
    "fairseq.distributed.utils.call_main",
    "fairseq.logging.progress_bar.progress_bar",
    "fairseq.options.parse_args_and_arch",
    "fairseq.trainer.Trainer.__new__",
    "fairseq_cli.interactive.buffered_read",
    "fairseq_cli.train.get_training_stats",
    "fairseq_cli.train.train",
    "fairseq_cli.train.validate_and_save",
}


def test_the_table_is_this_one():
    assert {patch.target for patch in PATCHES} == TARGETS and all(patch.why for patch in PATCHES)


# ---- nothing else is replaced ----


def foreign_names(tree):
    """The names that a file binds to other packages, and to what is in them."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {(name.asname or name.name).split(".")[0] for name in node.names if not name.name.startswith(OURS)}
        elif isinstance(node, ast.ImportFrom) and not node.module.startswith(OURS):
            found |= {name.asname or name.name for name in node.names}
    return found


def targets_of(node):
    """What a statement or an expression assigns to."""
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            return targets
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            return [target]
        case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[owner, *_]):
            return [ast.Attribute(owner, "")]
    return []


def replaced_in(source):
    """The lines in which attributes of other packages are assigned, or modules are looked up to do so."""
    tree = ast.parse(source)
    foreign, found = foreign_names(tree), []
    for node in ast.walk(tree):
        for target in targets_of(node):
            for part in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
                base = part
                while isinstance(base, ast.Attribute | ast.Subscript):
                    base = base.value
                if base is not part and isinstance(base, ast.Name) and base.id in foreign - {"os"}:
                    found.append(node.lineno)  # `os.environ` is the process's own
        if isinstance(node, ast.Attribute | ast.Subscript) and ast.unparse(node.value) == "sys.modules":
            found.append(node.lineno)
    return found


@pytest.mark.parametrize(
    "line", ["utils.f = 1", "utils.C.f, x = 1, 2", "setattr(utils, 'f', 1)", "del utils.f", "m = sys.modules['a']"]
)
def test_a_replacement_is_seen(line):
    assert replaced_in(f"import sys\nfrom fairseq import utils\n{line}\nx.y = 1\n") == [3]


def test_nothing_is_replaced_outside_the_room():
    files = [file for file in PACKAGE.rglob("*.py") if "fairseq_patches" not in file.parts]
    assert len(files) > 90
    assert {str(file): lines for file in files if (lines := replaced_in(file.read_text(encoding="utf-8")))} == {}


def test_a_line_of_training_has_no_figures_that_nobody_knows():
    from fairseq_cli import train

    register()
    metrics.log_start_time("wall")  # as the trainer does
    shown = train.get_training_stats({"loss": 0.5, "cb_loss": None, "rte_loss": 0.0})
    assert {name: value for name, value in shown.items() if name != "wall"} == {"loss": 0.5, "rte_loss": 0.0}


# ---- it is put in place once ----


def test_applying_again_changes_nothing():
    register()
    before = [getattr(owner, name) for patch in PATCHES for owner, name in patch._owners()]
    register()
    assert [getattr(owner, name) for patch in PATCHES for owner, name in patch._owners()] == before
    assert all(hasattr(found, "patched_by") for found in before) and len(before) >= len(PATCHES) - 4


def test_what_somebody_put_in_a_place_since_is_wrapped_as_the_original_was(monkeypatch):
    register()
    monkeypatch.setattr(checkpoint_utils, "save_checkpoint", lambda *args: None)
    register()
    assert hasattr(checkpoint_utils.save_checkpoint, "patched_by")


def test_commands_are_patched_once_they_are_loaded(monkeypatch):
    command = Namespace(buffered_read=len, make_batches=len)
    monkeypatch.setitem(sys.modules, "fairseq_cli.interactive", command)
    monkeypatch.setattr(patches, "_checked", set())
    with refused("fairseq_cli.interactive.buffered_read"):
        apply_to_commands()
    monkeypatch.setattr(patches, "_checked", {patch.target for patch in PATCHES})
    apply_to_commands()
    assert command.buffered_read is not len and command.make_batches is len


# ---- signatures ----


def test_all_fit_the_installed_fairseq():
    """Of what is wrapped: `functools.wraps` shows the signature below; what is replaced whole has the same one."""
    import fairseq_cli.interactive
    import fairseq_cli.train

    assert fairseq_cli.interactive and fairseq_cli.train
    shown = {patch.target for patch in PATCHES if not patch.signature}
    assert shown == {"sys.excepthook", "fairseq.dataclass.constants.LOG_FORMAT_CHOICES"}


def f(a: int, b: "str | None" = None) -> None: ...


@pytest.mark.parametrize(
    ("signature", "found", "fits"),
    [
        ("(a, b=None)", f, True),
        ("(a, b=1)", f, False),
        ("(a)", f, False),
        ("(a, ...)", f, True),
        ("(b, ...)", f, False),
        ("(a, ...)", lambda a, c: None, False),
        ("(a, ...)", lambda ab: None, False),
        ("(a)", 3, False),
        ("(a)", lambda *args, **kwargs: None, True),
        ("(a)", functools.wraps(f)(lambda *args, **kwargs: None), False),
        ("(a)", None, False),
    ],
)
def test_another_signature_is_refused_and_left_alone(signature, found, fits, monkeypatch):
    monkeypatch.setattr(checkpoint_utils, "f", found, raising=False)
    patch = Patch("fairseq.checkpoint_utils.f", instead(print), "a test", signature)
    with nullcontext() if fits else refused("fairseq.checkpoint_utils.f"):
        patch.check(checkpoint_utils.f)
    assert checkpoint_utils.f is found


@pytest.mark.parametrize("target", ["fairseq.data.Nothing.f", "fairseq.nothing.f"])
def test_an_owner_that_is_not_there_is_refused(target):
    with refused(target):
        Patch(target, instead(print), "a test").apply()


def test_a_class_is_told_by_the_signature_of_its_constructor():
    patch = Patch(
        "fairseq.trainer.Trainer.__new__", instead(print), "a test", "(self)", "fairseq.trainer.Trainer.__init__"
    )
    with refused("fairseq.trainer.Trainer.__init__"):
        patch.check(print)
