"""Extract English sentences from the docstrings of installed libraries.

Reads source files without importing the libraries. Skips everything but prose, such as lists and
examples.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from fairseq_mtmoe.core.errors import UserError

SHORTEST, LONGEST = 6, 28  # number of words in a sentence
LEFT_OUT = (
    "tests",
    "testing",
    "conftest.py",
    "_version.py",
    "externals",
    "_lib",
)  # tests and other projects' code
PROSE = re.compile(r"[A-Z][A-Za-z0-9 ,;:._='()/\"-]*[A-Za-z0-9)]\.")
ROLE = re.compile(r":[\w:]+:`([^`]*)`")
UNDERLINE = re.compile(r"[-=~^]{3,}")
END = re.compile(r"(?<!e\.g\.)(?<!i\.e\.)(?<!cf\.)(?<!vs\.)(?<=[.!?])\s+(?=[A-Z])")

Described = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, eq=False)
class Description:
    """The prose of a docstring.

    Attributes:
        library: the library's name.
        part: the library's subpackage or top-level module, such as `scipy.stats`.
        file: the source file, such as `scipy/stats/_entropy.py`.
        name: of the function, class or module.
        sentences: the sentences in order.
    """

    library: str
    part: str
    file: str
    name: str
    sentences: tuple[str, ...]


def read_descriptions(libraries: Sequence[str]) -> list[Description]:
    """Return the libraries' descriptions, without sentences that occur twice.

    Raises:
        UserError: a library is not installed.
    """
    found = [description for library in libraries for description in _of_library(library)]
    counts = Counter(
        _letters(sentence) for description in found for sentence in description.sentences
    )
    once = [
        replace(
            description,
            sentences=tuple(s for s in description.sentences if counts[_letters(s)] == 1),
        )
        for description in found
    ]
    return [description for description in once if description.sentences]


def sentences_of(docstring: str) -> list[str]:
    """Return the prose sentences of a docstring before its first section."""
    found: list[str] = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
        lines = block.split("\n")
        if len(lines) > 1 and UNDERLINE.fullmatch(lines[1].strip()):
            break
        if not any(line[:1].isspace() for line in lines):
            found += [s for s in END.split(_plain(" ".join(lines))) if _is_prose(s)]
    return found


def _of_library(library: str) -> Iterator[Description]:
    spec = find_spec(library)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"`{library}` must be an installed package, but is not; `make install` installs the "
            "demo's."
        )
    root = Path(next(iter(spec.submodule_search_locations)))
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        if not any(part in LEFT_OUT for part in place.parts):
            part = f"{library}.{place.parts[0].removesuffix('.py')}"
            for name, docstring in _docstrings(path):
                yield Description(
                    library,
                    part,
                    f"{library}/{place.as_posix()}",
                    name,
                    tuple(sentences_of(docstring)),
                )


def _docstrings(path: Path) -> Iterator[tuple[str, str]]:
    """Yield a file's docstrings with the names of their functions, classes or module."""
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:  # a template, or code for another Python
        return
    waiting: list[Described] = [tree]
    while waiting:
        described = waiting.pop()
        docstring = ast.get_docstring(described, clean=False)
        if docstring:
            yield getattr(described, "name", path.stem), docstring
        waiting += [node for node in reversed(described.body) if isinstance(node, Described)]


def _plain(text: str) -> str:
    """Return text without reStructuredText markup."""
    text = ROLE.sub(lambda match: match[1].rpartition(".")[2].lstrip("~"), text)
    return " ".join(re.sub(r"[`*]", "", text).split())


def _is_prose(sentence: str) -> bool:
    return PROSE.fullmatch(sentence) is not None and SHORTEST <= len(sentence.split()) <= LONGEST


def _letters(sentence: str) -> str:
    """Return a sentence's letters in lower case, to find near duplicates."""
    return re.sub(r"[^a-z]", "", sentence.lower())
