"""Measure the size of the code, and check that it does not grow: part of `make lint`.

    python tools/size.py            # compare with the ceilings of tools/size.json; fails if one is exceeded
    python tools/size.py --lower    # write the present sizes as ceilings; a ceiling never rises
    python tools/size.py --options  # list the options of architectures, tasks and commands with their number
"""

from __future__ import annotations

import argparse
import json
import sys
import tokenize
from collections import Counter
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).parents[1]
CEILINGS = ROOT / "tools" / "size.json"
PACKAGE = "fairseq_mtmoe"
COUNTED_BY_LINES = ("tests", "benchmarks")
COUNTED_TOKENS = {tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING}


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
    exceeded = [
        (name, size, ceilings.get(name, 0))
        for name, size in measured.items()
        if size > ceilings.get(name, 0)
    ]
    if exceeded:
        print("Larger than tools/size.json allows; remove something, or say why it must grow:")
        print(tabulate(exceeded, headers=("", "now", "ceiling")))
    return int(bool(exceeded))


def main() -> None:
    """Check the sizes, lower the ceilings, or list the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lower", action="store_true", help="write the present sizes as ceilings")
    parser.add_argument("--options", action="store_true", help="list the options with their number")
    arguments = parser.parse_args()
    if arguments.options:
        names = options()
        print("\n".join([*names, f"{len(names)} options"]))
        return
    sys.exit(check(arguments.lower))


if __name__ == "__main__":
    main()
