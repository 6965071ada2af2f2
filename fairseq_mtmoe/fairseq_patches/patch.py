"""What a patch is, how it gets in place, and whether it fits the fairseq that is installed."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from fairseq_mtmoe.errors import UserError

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
        wrap: takes what has the name `target` and returns what shall have it.
        why: what would go wrong without it.
        signature: of what is replaced, without annotations. It ends in `, ...)` where the replacement hands on whatever
            comes after that. Empty where nothing is called.
        signature_of: the dotted name whose signature that is, if not the target's.
    """

    target: str
    wrap: Callable[[Any], Any]
    why: str
    signature: str = ""
    signature_of: str = ""

    def apply(self) -> None:
        """Put the replacement in place, unless it is there already; what somebody put there since then is replaced."""
        if self.target.startswith(COMMANDS):
            _of_commands[self.target] = self
        for owner, name in self._owners():
            found = getattr(owner, name, None)
            if hasattr(found, _MARK):
                continue
            if self.target not in _checked:
                self.check(found)
                _checked.add(self.target)
            replacement = self.wrap(found)
            setattr(replacement, _MARK, __package__)
            setattr(owner, name, replacement)

    def check(self, found: Any) -> None:
        """Compare the signature with that of what has the name now; a `UserError` where they differ."""
        if found is None:
            self._refuse("be there", "is not")
        if self.signature:
            installed = _signature(_resolve(self.signature_of) if self.signature_of else found)
            if installed != _ANYTHING and not _fits(self.signature, installed):  # a wrapper may not show what is inside
                self._refuse(f"take {self.signature}", f"takes {installed}")

    def _owners(self) -> Iterator[tuple[Any, str]]:
        """The modules or classes that have the target, which is a command's only where that is loaded."""
        module, _, name = self.target.rpartition(".")
        if not self.target.startswith(COMMANDS):
            yield _resolve(module), name
            return
        for loaded in (sys.modules.get(module), sys.modules.get("__main__")):
            if loaded is not None and all(hasattr(loaded, known) for known in _NAMES_OF_COMMANDS[module]):
                yield loaded, name

    def _refuse(self, rule: str, found: str) -> None:
        import fairseq

        version = getattr(fairseq, "__version__", "")
        raise UserError(
            f"`{self.signature_of or self.target}` must {rule}, but {found} in the installed fairseq {version}: "
            "fairseq_mtmoe replaces it, and is tested with fairseq-fixed 0.12.3.1."
        )


def apply_to_commands() -> None:
    """Put in place what was asked for in a command that was loaded since then."""
    for patch in _of_commands.values():
        patch.apply()


def instead(replacement: Any) -> Callable[[Any], Any]:
    """A wrapper that has no use for what is there."""
    return lambda original: replacement


def _resolve(dotted: str) -> Any:
    """The module, class or function of this name; None where there is none."""
    try:
        return resolve_name(dotted)
    except (ImportError, AttributeError):
        return None


def _signature(function: Any) -> str:
    """A function's parameters with their defaults, without annotations."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "no arguments that Python can tell"
    bare = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))


def _fits(expected: str, found: str) -> bool:
    if not expected.endswith(_MORE):
        return found == expected
    start = expected.removesuffix(_MORE)
    more = found.removeprefix(start).removesuffix(")").split(", ")
    return found.startswith(start) and more[0] == "" and all("=" in each or each.startswith("*") for each in more[1:])
