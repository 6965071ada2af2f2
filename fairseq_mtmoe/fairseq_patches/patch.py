"""What a patch is, how it gets in place, and whether it fits the fairseq that is installed."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from fairseq_mtmoe.errors import UserError

TESTED_WITH = "fairseq-fixed 0.12.3.1"
COMMANDS = "fairseq_cli."
_MORE = ", ...)"  # ends a signature after which further parameters with defaults may come
_ANYTHING = "(*args, **kwargs)"
_MARK = "patched_by"
# By which names a command's module is told, also if it is the script that runs.
_NAMES_OF_COMMANDS = {
    "fairseq_cli.train": ("validate_and_save", "train"),
    "fairseq_cli.interactive": ("buffered_read", "make_batches"),
}

_checked: set[str] = set()  # targets that were fairseq's own when they were seen first
_of_commands: dict[str, Patch] = {}  # those that were asked for, by target


@dataclass(frozen=True)
class Patch:
    """One name of another package, and what takes its place there.

    Args:
        target: the dotted name.
        layers: each takes what has the name and returns what shall have it; the last one is the outermost.
        why: what would go wrong without it.
        signature: of what is replaced, without annotations. It ends in `, ...)` where the replacement hands on whatever
            comes after that. Empty where nothing is called.
        signature_of: the dotted name whose signature that is, if not the target's.
        versions: of fairseq, in which the target was seen to be as the replacement takes it to be.
    """

    target: str
    layers: tuple[Callable[[Any], Any], ...]
    why: str
    signature: str = ""
    signature_of: str = ""
    versions: tuple[str, ...] = ("0.12.3.1",)

    def apply(self) -> None:
        """Put the replacement in place, unless it is there already; what somebody put there since then is replaced.

        Raises:
            UserError: fairseq's own has another signature, or there is none.
        """
        if self.target.startswith(COMMANDS):
            _of_commands[self.target] = self
        for owner, name in self._owners():
            found = self._found(owner, name)
            if not hasattr(found, _MARK):
                if self.target not in _checked:
                    self.check(found)
                    _checked.add(self.target)
                for layer in self.layers:
                    found = layer(found)
                setattr(found, _MARK, __package__)
                setattr(owner, name, found)

    def check(self, found: Any) -> None:
        """Compare the signature with that of what has the name now.

        Raises:
            UserError: they differ.
        """
        if not self.signature:
            return
        target = self.signature_of or self.target
        if self.signature_of:
            found = _resolve(target)
        installed = _signature(found)
        if installed != _ANYTHING and not _fits(self.signature, installed):  # a wrapper may not show what is inside
            self._refuse(target, f"take {self.signature}", f"takes {installed}")

    def _owners(self) -> Iterator[tuple[Any, str]]:
        """The modules or classes that have the target, which is a command's only where that is loaded."""
        module, _, name = self.target.rpartition(".")
        if not self.target.startswith(COMMANDS):
            yield _resolve(module), name
            return
        for loaded in (sys.modules.get(module), sys.modules.get("__main__")):
            if loaded is not None and all(hasattr(loaded, known) for known in _NAMES_OF_COMMANDS[module]):
                yield loaded, name

    def _found(self, owner: Any, name: str) -> Any:
        if not hasattr(owner, name):
            self._refuse(self.target, "be there", "is not")
        return getattr(owner, name)

    def _refuse(self, target: str, rule: str, found: str) -> None:
        import fairseq

        raise UserError(
            f"`{target}` must {rule}, but {found} in the installed fairseq {getattr(fairseq, '__version__', '')}: "
            f"fairseq_mtmoe replaces `{self.target}`, and is tested with {TESTED_WITH}."
        )


def apply_to_commands() -> None:
    """Put in place what was asked for in a command that was loaded since then."""
    for patch in _of_commands.values():
        patch.apply()


def instead(replacement: Any) -> Callable[[Any], Any]:
    """A layer that has no use for what is there."""
    return lambda original: replacement


def _resolve(dotted: str) -> Any:
    """The module, or the class or function in a module, of this name; None where there is none."""
    try:
        return importlib.import_module(dotted)
    except ModuleNotFoundError:
        module, _, name = dotted.rpartition(".")
        owner: ModuleType | Any = _resolve(module) if module else None
        return getattr(owner, name, None)


def _signature(function: Any) -> str:
    """A function's parameters with their defaults, without annotations."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "no arguments that Python can tell"
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def _fits(expected: str, found: str) -> bool:
    if not expected.endswith(_MORE):
        return found == expected
    start = expected.removesuffix(_MORE)
    rest = found.removeprefix(start).removesuffix(")")
    return found.startswith(start) and all("=" in each or each.startswith("*") for each in rest.split(", ")[1:])
