"""Measure the size and the density of the code, and check that neither grows: part of `make lint`.

python tools/size.py            # compare with the ceilings of tools/size.json; fails if one is exceeded
python tools/size.py --lower    # write the present sizes as ceilings; a ceiling never rises
python tools/size.py --folders  # print the density of each folder of the package
python tools/size.py --options  # list the options of architectures, tasks and commands with their number
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).parents[1]
CEILINGS = ROOT / "tools" / "size.json"
PACKAGE = "fairseq_mtmoe"
COUNTED_BY_LINES = ("tests", "benchmarks")
COUNTED_TOKENS = {tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING}
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
STATEMENTS_WITH_BODY = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.For, ast.While, ast.If, ast.With, ast.Try, ast.Match,
)  # fmt: skip
VAGUE_NAME = re.compile(r"found|one|own|known|given|of|of_\w+")  # says nothing of what the local holds

# How dense plain code may be: in the package, and in any of its folders
MOST_TOKENS_A_LINE = 7.0
MOST_TOKENS_A_LINE_IN_A_FOLDER = 7.8
MOST_COMPREHENSIONS = 25  # per 1,000 lines
MOST_CONDITIONAL_EXPRESSIONS = 14  # per 1,000 lines
MOST_VAGUE_NAMES = 50
MOST_LINES_OF_A_FILE = 499
MOST_LINES_OF_A_FUNCTION = 60
MOST_CHARACTERS_OF_A_SUMMARY = 80  # the first line of a docstring


@dataclass
class Density:
    """Counts of what makes code hard to read, in some files."""

    lines: int = 0
    tokens: int = 0
    comprehensions: int = 0
    conditional_expressions: int = 0
    vague_names: int = 0

    def add(self, path: Path) -> None:
        """Add the counts of a file."""
        self.lines += lines_of(path)
        self.tokens += tokens_of(path)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            self.comprehensions += isinstance(node, COMPREHENSIONS)
            self.conditional_expressions += isinstance(node, ast.IfExp)
            self.vague_names += is_vague(node)

    @property
    def tokens_a_line(self) -> float:
        """The number of tokens a physical line."""
        return self.tokens / max(self.lines, 1)

    @property
    def comprehensions_per_1000_lines(self) -> float:
        """The number of comprehensions and generator expressions per 1,000 lines."""
        return 1000 * self.comprehensions / max(self.lines, 1)

    @property
    def conditional_expressions_per_1000_lines(self) -> float:
        """The number of `a if b else c` per 1,000 lines."""
        return 1000 * self.conditional_expressions / max(self.lines, 1)


def is_vague(node: ast.AST) -> bool:
    """Say whether a node gives a local or an argument a name that names nothing."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return VAGUE_NAME.fullmatch(node.id) is not None
    return isinstance(node, ast.arg) and VAGUE_NAME.fullmatch(node.arg) is not None


def statements_too_dense(path: Path) -> Iterator[int]:
    """Yield the first line of each statement with two comprehensions, or with a conditional expression in one."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.stmt) or isinstance(node, STATEMENTS_WITH_BODY):
            continue
        comprehensions = [part for part in ast.walk(node) if isinstance(part, COMPREHENSIONS)]
        conditional = any(isinstance(part, ast.IfExp) for outer in comprehensions for part in ast.walk(outer))
        if len(comprehensions) > 1 or conditional:
            yield node.lineno


def too_long(path: Path) -> Iterator[str]:
    """Yield a sentence for a long file, and for each long function and first line of a docstring."""
    if lines_of(path) > MOST_LINES_OF_A_FILE:
        yield f"{path}: shorten this file to {MOST_LINES_OF_A_FILE} lines."
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= MOST_LINES_OF_A_FUNCTION:
            yield f"{path}:{node.lineno}: shorten this function to {MOST_LINES_OF_A_FUNCTION} lines."
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            summary, *_ = (ast.get_docstring(node) or "").split("\n")
            if len(summary) > MOST_CHARACTERS_OF_A_SUMMARY:
                yield f"{path}: shorten this line to {MOST_CHARACTERS_OF_A_SUMMARY} characters: {summary}"


def tokens_of(path: Path) -> int:
    """Return the number of names, operators, numbers and strings in a file.

    An f-string counts as one string, as Python 3.11 reads it; later versions see its parts.
    """
    count = 0
    depth = 0  # number of f-strings around the token
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            kind = tokenize.tok_name[token.type]
            if kind == "FSTRING_START":
                count += depth == 0
                depth += 1
            elif kind == "FSTRING_END":
                depth -= 1
            elif depth == 0 and token.type in COUNTED_TOKENS:
                count += 1
    return count


def lines_of(path: Path) -> int:
    """Return the number of lines of a file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def densities() -> dict[str, Density]:
    """Return the density of each folder of the package, of the files beside them, and of the whole."""
    result: dict[str, Density] = {PACKAGE: Density()}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        folder = path.relative_to(ROOT / PACKAGE).parts[0]
        name = f"{PACKAGE}/{folder}" if path.parent != ROOT / PACKAGE else f"{PACKAGE}/*.py"
        result.setdefault(name, Density()).add(path)
        result[PACKAGE].add(path)
    return result


def too_dense() -> Iterator[str]:
    """Yield a sentence for each bound of plain code that the package exceeds."""
    measured = densities()
    for folder, density in measured.items():
        most = MOST_TOKENS_A_LINE if folder == PACKAGE else MOST_TOKENS_A_LINE_IN_A_FOLDER
        if density.tokens_a_line > most:
            yield f"{folder} has {density.tokens_a_line:.1f} tokens a line; at most {most} are wanted."
    whole = measured[PACKAGE]
    bounds = (
        ("comprehensions per 1,000 lines", whole.comprehensions_per_1000_lines, MOST_COMPREHENSIONS),
        ("conditional expressions per 1,000 lines", whole.conditional_expressions_per_1000_lines,
         MOST_CONDITIONAL_EXPRESSIONS),
        ("locals and arguments with a vague name", whole.vague_names, MOST_VAGUE_NAMES),
    )  # fmt: skip
    for name, count, most in bounds:
        if count > most:
            yield f"The package has {count:.1f} {name}; at most {most} are wanted."
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        for line in statements_too_dense(path):
            yield f"{path.relative_to(ROOT)}:{line}: write this statement with one comprehension, without a condition."
        yield from too_long(path)


def sizes() -> dict[str, int]:
    """Return the tokens of each folder of the package, and the lines of tests and benchmarks."""
    counts: Counter[str] = Counter()
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        folder = path.relative_to(ROOT / PACKAGE).parts[0]
        name = f"{PACKAGE}/{folder}" if path.parent != ROOT / PACKAGE else PACKAGE
        tokens = tokens_of(path)
        counts[name] += tokens
        counts["tokens of the package"] += tokens
    for folder in COUNTED_BY_LINES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            counts[f"lines of {folder}"] += lines_of(path)
    return dict(counts)


def options() -> list[str]:
    """Return the options that the package adds to fairseq, and those of its commands."""
    import click

    from fairseq_mtmoe.cli._registered import choices
    from fairseq_mtmoe.cli.main import commands

    flags = {option.flag for choice in choices() for option in choice.new_options()}
    names = sorted(flags)
    waiting: list[tuple[str, click.Command]] = [("mtmoe", commands)]
    while waiting:
        name, command = waiting.pop()
        if isinstance(command, click.Group):
            context = click.Context(command)
            for subcommand in command.list_commands(context):
                waiting.append((f"{name} {subcommand}", command.get_command(context, subcommand)))
            continue
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                names.append(f"{name} {parameter.opts[0]}")
    return names


def check(lower: bool) -> int:
    """Print each size with its ceiling, and return 1 if one is exceeded."""
    ceilings: dict[str, int] = json.loads(CEILINGS.read_text()) if CEILINGS.exists() else {}
    measured = sizes()
    if lower:
        lowered = {name: min(size, ceilings.get(name, size)) for name, size in measured.items()}
        CEILINGS.write_text(json.dumps(lowered, indent=1) + "\n", encoding="utf-8")
        return 0
    exceeded = [(name, size, ceilings.get(name, 0)) for name, size in measured.items() if size > ceilings.get(name, 0)]
    if exceeded:
        print("Larger than tools/size.json allows; remove something, or say why it must grow:")
        print(tabulate(exceeded, headers=("", "now", "ceiling")))
    dense = list(too_dense())
    for sentence in dense:
        print(sentence)
    return int(bool(exceeded or dense))


def print_densities() -> None:
    """Print the density of each folder."""
    rows = [
        (folder, density.lines, density.tokens, density.tokens_a_line, density.comprehensions_per_1000_lines,
         density.conditional_expressions_per_1000_lines, density.vague_names)
        for folder, density in densities().items()
    ]  # fmt: skip
    headers = ("", "lines", "tokens", "a line", "comprehensions", "conditional", "vague names")
    print(tabulate(rows, headers=headers, floatfmt=".1f"))


def main() -> None:
    """Check the sizes, lower the ceilings, or print densities or options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lower", action="store_true", help="write the present sizes as ceilings")
    parser.add_argument("--folders", action="store_true", help="print the density of each folder")
    parser.add_argument("--options", action="store_true", help="list the options with their number")
    arguments = parser.parse_args()
    if arguments.options:
        names = options()
        print("\n".join([*names, f"{len(names)} options"]))
        return
    if arguments.folders:
        print_densities()
        return
    sys.exit(check(arguments.lower))


if __name__ == "__main__":
    main()
