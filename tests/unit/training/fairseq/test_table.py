"""What is replaced in other packages: all of it is in the table, and fits the fairseq that is installed."""

import ast
import functools
import sys
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path

from fairseq import checkpoint_utils
from fairseq.logging import metrics

import fairseq_mtmoe
from fairseq_mtmoe import register
from fairseq_mtmoe.training.fairseq import patch as patches
from fairseq_mtmoe.training.fairseq.patch import Patch, apply_to_commands, instead
from fairseq_mtmoe.training.fairseq.table import PATCHES
from tests.helpers.refused import refused

PACKAGE = Path(fairseq_mtmoe.__file__).parent
OURS = "fairseq_mtmoe"


def replaced_in(source):
    """The lines in which attributes of other packages are assigned, or modules are looked up to do so."""
    tree, foreign, found = ast.parse(source), set(), []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                foreign |= {(one.asname or one.name).split(".")[0] for one in names if not one.name.startswith(OURS)}
            case ast.ImportFrom(module=module, names=names) if not module.startswith(OURS):
                foreign |= {one.asname or one.name for one in names}
    foreign -= {"os"}  # `os.environ` is the process's own
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
                base = node.value
            case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[base, *_]):
                pass
            case _:
                base = None
        while isinstance(base, ast.Attribute | ast.Subscript):
            base = base.value
        if isinstance(base, ast.Name) and base.id in foreign:
            found.append(node.lineno)
        if isinstance(node, ast.Attribute | ast.Subscript) and ast.unparse(node.value) == "sys.modules":
            found.append(node.lineno)
    return found


def test_nothing_is_replaced_outside_the_room():
    files = [file for file in PACKAGE.rglob("*.py") if PACKAGE / "training" / "fairseq" not in file.parents]
    assert len(files) > 90
    assert {str(file): lines for file in files if (lines := replaced_in(file.read_text(encoding="utf-8")))} == {}


def test_a_line_of_training_has_no_figures_that_nobody_knows():
    from fairseq_cli import train

    register()
    metrics.log_start_time("wall")  # as the trainer does
    shown = train.get_training_stats({"loss": 0.5, "cb_loss": None, "rte_loss": 0.0})
    assert shown.keys() - {"wall"} == {"loss", "rte_loss"}


def test_applying_again_changes_nothing_but_what_somebody_put_there_since(monkeypatch):
    register()
    before = [getattr(owner, name) for patch in PATCHES for owner, name in patch._owners()]
    register()
    assert [getattr(owner, name) for patch in PATCHES for owner, name in patch._owners()] == before
    assert all(hasattr(found, "patched_by") for found in before) and len(before) >= len(PATCHES) - 4
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


def f(a: int, b: "str | None" = None) -> None: ...


def anything(*args, **kwargs): ...


FITTING = [("(a, b=None)", f), ("(a)", anything)]
OTHERS = [("(a, b=1)", f), ("(a)", 3), ("(a)", None), ("(a)", functools.wraps(f)(lambda *args, **kwargs: None))]


def test_another_signature_or_no_owner_is_refused():
    for signature, found in (*FITTING, *OTHERS):
        with nullcontext() if (signature, found) in FITTING else refused("fairseq.checkpoint_utils.f"):
            Patch("fairseq.checkpoint_utils.f", instead(print), "a test", signature).check(found)
    for target in ("fairseq.data.Nothing.f", "fairseq.nothing.f"):
        with refused(target):
            Patch(target, instead(print), "a test").apply()
