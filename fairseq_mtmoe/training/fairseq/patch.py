"""Patches: how they are applied, and whether they fit the installed fairseq."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from fairseq_mtmoe.core.errors import UserError

COMMANDS = "fairseq_cli."
_ANYTHING = "(*args, **kwargs)"
_MARK = "patched_by"
# Names that identify a command's module, also if it runs as a script.
_NAMES_OF_COMMANDS = {
    "fairseq_cli.train": ("validate_and_save", "train"),
    "fairseq_cli.interactive": ("buffered_read", "make_batches"),
}

_checked: set[str] = set()  # targets whose signature was compared
_of_commands: dict[str, Patch] = {}  # patches of commands, by target


@dataclass(frozen=True)
class Patch:
    """A name in another package, and its replacement.

    Args:
        wrap: takes the object with the name `target`, and returns its replacement.
        why: what would go wrong without it.
        signature: the replaced object's, without annotations; empty if it is not compared.
    """

    target: str
    wrap: Callable[[Any], Any]
    why: str
    signature: str = ""

    def apply(self) -> None:
        """Apply the patch, unless it is applied; it also replaces later changes by others."""
        if self.target.startswith(COMMANDS):
            _of_commands[self.target] = self
        for owner, name in self._owners():
            replaced = getattr(owner, name, None)
            if hasattr(replaced, _MARK):
                continue
            if self.target not in _checked:
                self.check(replaced)
                _checked.add(self.target)
            replacement = self.wrap(replaced)
            setattr(replacement, _MARK, __package__)
            setattr(owner, name, replacement)

    def check(self, replaced: Any) -> None:
        """Compare the signature with the installed one (UserError: they differ)."""
        if replaced is None:
            self._refuse("be there", "is not")
        if self.signature:
            installed = _signature(replaced)
            # A wrapper may hide its signature.
            if installed not in (_ANYTHING, self.signature):
                self._refuse(f"take {self.signature}", f"takes {installed}")

    def _owners(self) -> Iterator[tuple[Any, str]]:
        """Yield the modules or classes with the target; commands once imported."""
        module, _, name = self.target.rpartition(".")
        if not self.target.startswith(COMMANDS):
            yield _resolve(module), name
            return
        for loaded in (sys.modules.get(module), sys.modules.get("__main__")):
            if loaded is not None and all(
                hasattr(loaded, function) for function in _NAMES_OF_COMMANDS[module]
            ):
                yield loaded, name

    def _refuse(self, rule: str, fact: str) -> None:
        import fairseq

        version = getattr(fairseq, "__version__", "")
        raise UserError(
            f"`{self.target}` must {rule}, but {fact} in the installed "
            f"fairseq {version}; fairseq_mtmoe replaces it, and is tested with fairseq-fixed "
            "0.12.3.1."
        )


def apply_to_commands() -> None:
    """Apply the patches of commands that were imported since then."""
    for patch in _of_commands.values():
        patch.apply()


def instead(replacement: Any) -> Callable[[Any], Any]:
    """Return a wrapper that ignores the original."""
    return lambda original: replacement


def _resolve(dotted: str) -> Any:
    """Return the module, class or function of this name, or None."""
    try:
        return resolve_name(dotted)
    except (ImportError, AttributeError):
        return None


def _signature(function: Any) -> str:
    """Return a function's signature without annotations."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "arguments that Python cannot inspect"
    bare = [
        parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))
