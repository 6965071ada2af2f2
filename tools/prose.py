"""`make lint`: find hard English in pages, help, docstrings and errors, and tables of more than four columns.

    python tools/prose.py [FILE …]

Without a file it reads README.md, CONTRIBUTING.md, docs/ and the package. It prints `file:line: the rule: the text`,
and exits with 1 if it finds a pattern. CONTRIBUTING.md has the rules.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token
from proselint.checks import lexical_illusions, malapropisms, nonwords
from proselint.registry.checks import Check, CheckResult, engine
from proselint.registry.checks.types import ExistenceSimple

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "fairseq_mtmoe/**/*.md", "examples/**/*.md")
GENERATED = "docs/site"
LONGEST = 45  # words in a sentence: 25 are the rule, but a list may need more
CLAUSE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*(])|(?<=[;:])\s")
WIDE = re.compile(r"\|(\s*:?-+:?\s*\|){5,}")  # the line below the head of a table of more than four columns
FORMULA = re.compile(r"(?!.*[A-Za-z]{3})")  # `x x` repeats nothing
RAISED = {"UserError": 1, "raise_invalid": 2}  # arguments with a sentence for users
CASED = engine.Fast(engine.RegexOptions(case_insensitive=False))


class Block(NamedTuple):
    """A paragraph, table cell or help text, and its first line."""

    file: Path
    line: int
    text: str


def long_sentences(text: str, check: Check) -> Iterator[CheckResult]:
    """Yield what has more words than `LONGEST` without a full stop, a semicolon or a colon."""
    for sentence in CLAUSE.split(text):
        if len(sentence.split()) > LONGEST:
            start = text.index(sentence)
            yield CheckResult(check.path, check.message, (start, start + len(sentence)), None)


CHECKS = (
    Check(
        ExistenceSimple(r"(?:^|[.!?]\s+)(?:Of|What|Who|Whom|Whose|Those|Whoever|Whatever|Whichever)\s"), CASED,
        path="opener", message="begin the sentence with its subject",
    ),
    Check(
        ExistenceSimple(r"(?:^|[.!?:]\s+)(?:Counted|Dropped|Refused|Needed|Asked|Drawn)\s+(?:is|are|was|were)\b"),
        CASED,
        path="participle", message="begin the sentence with its subject",
    ),
    Check(ExistenceSimple(r"\bbut for\b|\ball but\b|(?:^|[.!?;,] )nor\b"), path="negation", message="say what is so"),
    Check(
        ExistenceSimple(r"\b(?:is|are|was|were|be) of (?:an?|the|its|this|that|one|another|\d|`)"),
        path="genitive", message="name the relation: from, with, on, for or belongs to",
    ),
    Check(
        ExistenceSimple(
            r"\bbeside (?:an? |the )?(?:dense|random|task gates|BASE|equal|one |constant|paper|stock|its peer)"
        ),
        path="beside", message="say `compared with` or `than`",
    ),
    Check(
        ExistenceSimple(r"^After (?:reading )?this (?:page|tutorial)\b"), CASED,
        path="template", message="begin the page with what the reader wants to do",
    ),
    Check(ExistenceSimple(r"\bso many\b"), path="number", message="say `number of …` or the number"),
    Check(long_sentences, path="length", message=f"split the sentence: it has more than {LONGEST} words"),
    *lexical_illusions.__register__, *malapropisms.__register__, *nonwords.__register__,
)  # fmt: skip

OURS = ("opener", "participle", "negation", "genitive", "beside", "template", "number", "length")


def page_blocks(file: Path) -> Iterator[Block]:
    """Yield a page's paragraphs, list items and cells, with `code` for inline code.

    Headings are skipped, because they may be questions.
    """
    tokens = MarkdownIt("commonmark").enable("table").parse(file.read_text(encoding="utf-8"))
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type == "inline" and not (before and before.type == "heading_open"):
            line = token.map[0] + 1 if token.map else 1
            yield Block(file, line, "".join(map(_words, token.children or [])))


def _words(token: Token) -> str:
    if token.type in ("softbreak", "hardbreak"):
        return " "
    return "`code`" if token.type == "code_inline" else token.content if token.type == "text" else ""


def code_blocks(file: Path) -> Iterator[Block]:
    """Yield a module's docstrings by paragraph, its `help` texts and its errors."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            line = node.body[0].lineno
            for paragraph in re.split(r"\n\s*\n", text):
                yield from _docstring_blocks(file, line, paragraph)
                line += paragraph.count("\n") + 2
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RAISED:
            for argument in node.args[: RAISED[node.func.id]]:
                yield from _help_blocks(file, argument)
        elif isinstance(node, ast.keyword) and node.arg == "help":
            yield from _help_blocks(file, node.value)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "help":
                    yield from _help_blocks(file, value)


def _docstring_blocks(file: Path, line: int, paragraph: str) -> Iterator[Block]:
    if not paragraph.startswith("    "):  # four spaces: an example
        for item in re.split(r"\n(?= {4}\w+: |\S+:\n)", paragraph):  # an argument's line begins a block
            yield Block(file, line, re.sub(r"``?[^`]*``?", "`code`", " ".join(item.split())))


def _help_blocks(file: Path, node: ast.expr) -> Iterator[Block]:
    parts = [part.value if isinstance(part, ast.Constant) else "x" for part in getattr(node, "values", [node])]
    text = "".join(map(str, parts))
    yield Block(file, node.lineno, " ".join(text.split()))


def blocks(file: Path) -> Iterator[Block]:
    """Yield the prose of a page or a module."""
    yield from page_blocks(file) if file.suffix == ".md" else code_blocks(file)


def findings(block: Block) -> Iterator[str]:
    """Yield a line for each match of a rule in a block."""
    for check in CHECKS:
        for found in check.check(block.text):
            shown = block.text[slice(*found.span)].strip(" .!?")
            if not FORMULA.match(shown) or found.check_path in OURS:
                yield f"{block.file.relative_to(ROOT)}:{block.line}: {found.message}: {shown[:90]}"


def wide_tables(file: Path) -> Iterator[str]:
    """Yield a line for each table of a page that is too wide for the site and a phone."""
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if file.suffix == ".md" and WIDE.fullmatch(line):
            yield f"{file.relative_to(ROOT)}:{number}: split the table: it has more than four columns"


def main(names: list[str]) -> int:
    """Print all findings, and return the exit status."""
    files = [Path(name).resolve() for name in names] or sorted(
        file for pattern in (*PAGES, "fairseq_mtmoe/**/*.py") for file in ROOT.glob(pattern)
        if not str(file.relative_to(ROOT)).startswith(GENERATED)
    )  # fmt: skip
    found = [line for file in files for block in sorted(blocks(file)) for line in findings(block)]
    found += [line for file in files for line in wide_tables(file)]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
