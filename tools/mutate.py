"""Check that tests notice errors: break one place at a time and run tests.

    python tools/mutate.py --number 60 --seed 1 --out runs/mutations/before.json
    python tools/mutate.py --again tools/mutations.json --out runs/mutations/after.json

`mutations.json` has 60 mutations of 0.2.0 after its last fixes (67fe0205), and what its tests found.

The first command draws places from ROOMS: it negates a comparison or moves its bound, turns + into -, moves an index by
one, turns `and` into `or` and 0 into 1, or drops a `not` or a sign. The second command repeats the same mutations. It
finds them by the text around them, even if names or files have changed; missing ones are "gone". Both write a table
(.md) beside the JSON. Tests run in a copy of the tree, which must pass them unbroken. A test that does not end counts
as found.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import itertools
import json
import keyword
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

CLONE = Path(__file__).parents[1]
TESTS = {  # folder or file of the package -> its tests
    "moe": ["tests/unit/moe"],
    "moe/parallel": ["tests/integration/distributed/test_layer.py"],  # in addition to moe's
    "slots": ["tests/unit/slots", "tests/unit/translation/test_base_sparse.py"],
    "multitask/sampling": ["tests/unit/data/sampling"],
    "training/sparsify": ["tests/unit/sparsify"],
    "checkpoints": ["tests/unit/checkpoints"],
    "translation/criterion": ["tests/unit/criterions"],
    "nlu/criterion.py": ["tests/unit/criterions"],
    "pemt/criterion.py": ["tests/unit/criterions"],
    "training/weighted_loss.py": ["tests/unit/criterions"],
}
ROOMS = [room for room in TESTS if room != "moe/parallel"]
LEAST_LIKENESS = 0.6  # minimum similarity of a line and its neighbours with other names
LEFT_OUT = ("moe/assignment/triton_kernels.py",)  # runs only where Triton is installed
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv", "runs", "build", "wheelhouse*", "results", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info"
)
NEGATED = {
    **{ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
}
MOVED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
SWAPPED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.And: ast.Or, ast.Or: ast.And}
TEXT_CALLS = re.compile(r"(^|\.)(log|logger|logging|LOG|LOGGER|warn|warnings|print|raise_invalid)(\.|$)")
TEXT_METHODS = ("__repr__", "__str__", "extra_repr")


@dataclass(frozen=True)
class Mutation:
    """A change of a file's bytes `start` to `end` from `old` to `new`.

    `column` counts from the first letter of `line`.
    """

    path: str
    number: int
    start: int
    end: int
    old: str
    new: str
    column: int
    line: str
    before: str
    after: str

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]


def mutations_of_file(path: str, source: str) -> list[Mutation]:
    """Return all mutations of a file, in the order of its text."""
    lines = ["", *source.splitlines(), ""]
    starts = [0, *itertools.accumulate(len(text) for text in source.encode().splitlines(keepends=True))]
    found = []
    for node, new in _mutants(ast.parse(source)):
        line, before, after = (lines[node.lineno + i].strip() for i in (0, -1, 1))
        column = node.col_offset - lines[node.lineno].index(line)
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        old = " ".join(source.encode()[start:end].decode().split())
        found.append(Mutation(path, node.lineno, start, end, old, new, column, line, before, after))
    return sorted(found, key=lambda mutation: (mutation.start, mutation.end, mutation.new))


def _mutants(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yield nodes below `node` with their replacements.

    Skip annotations, decorators and messages.
    """
    if isinstance(node, ast.FunctionDef) and node.name in TEXT_METHODS:
        return
    if isinstance(node, (ast.JoinedStr, ast.Raise, ast.arg)):
        return
    if isinstance(node, ast.Call) and TEXT_CALLS.search(ast.unparse(node.func)):
        return
    for mutant in _mutants_of(node):
        text = ast.unparse(mutant)
        yield node, text if isinstance(node, (ast.AugAssign, ast.Constant)) else f"({text})"
    if isinstance(node, ast.Subscript):
        for part in (node.slice.lower, node.slice.upper) if isinstance(node.slice, ast.Slice) else (node.slice,):
            if part is not None and (isinstance(node.slice, ast.Slice) or _is_integer(part)):
                yield part, f"({ast.unparse(part)} + 1)"
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "msg") or (name == "slice" and _is_integer(value)):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _mutants(child)


def _is_integer(node: ast.AST) -> bool:
    value = node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else node
    return isinstance(value, ast.Constant) and type(value.value) is int


def _mutants_of(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(left, [operator], comparators):
            for table in (NEGATED, MOVED):
                if type(operator) in table:
                    yield ast.Compare(left, [table[type(operator)]()], comparators)
        case ast.BinOp(left, ast.Add() | ast.Sub() as operator, right) if not _is_text(left) | _is_text(right):
            yield ast.BinOp(left, SWAPPED[type(operator)](), right)
        case ast.AugAssign(target, ast.Add() | ast.Sub() as operator, value):
            yield ast.AugAssign(target, SWAPPED[type(operator)](), value)
        case ast.BoolOp(operator, values):
            yield ast.BoolOp(SWAPPED[type(operator)](), values)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield operand
        case ast.Constant(value) if type(value) in (int, float) and value in (0, 1):
            yield ast.Constant(type(value)(1 - value))


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def mutations_of_room(room: str) -> list[Mutation]:
    package = CLONE / "fairseq_mtmoe"
    files = package.glob(room if room.endswith(".py") else f"{room}/**/*.py")
    paths = sorted(str(path.relative_to(package)) for path in files)
    texts = [(path, (package / path).read_text(encoding="utf-8")) for path in paths if path not in LEFT_OUT]
    return [mutation for text in texts for mutation in mutations_of_file(*text)]


def draw(rooms: list[list[Mutation]], number: int, seed: int) -> list[Mutation]:
    """Draw `number` mutations from the rooms in turn, at most one per line."""
    generator, drawn = random.Random(seed), {}
    queues = [generator.sample(room, len(room)) for room in rooms]
    while len(drawn) < number and any(queues):
        for queue in queues:
            while queue and (queue[-1].path, queue[-1].number) in drawn:
                queue.pop()
            if queue and len(drawn) < number:
                mutation = queue.pop()
                drawn[mutation.path, mutation.number] = mutation
    return list(drawn.values())


def find_again(mutation: Mutation, candidates: list[Mutation]) -> Mutation | None:
    """Return the same mutation in the current files, or the most similar one."""
    same = [other for other in candidates if _without_names(other) == _without_names(mutation)]
    exact = [other for other in same if (other.line, other.new) == (mutation.line, mutation.new)]

    def likeness(other: Mutation) -> float:
        texts = ("\n".join((each.before, each.line, each.after)) for each in (mutation, other))
        return difflib.SequenceMatcher(None, *texts, autojunk=False).ratio()

    best = max(exact or same, key=lambda other: (other.path == mutation.path, likeness(other)), default=None)
    return best if best and (exact or likeness(best) >= LEAST_LIKENESS) else None


def _without_names(mutation: Mutation) -> tuple[str, ...]:
    """Return the mutation and its place in the line, with a dot for each name."""
    texts = mutation.line, mutation.line[: mutation.column], mutation.old, mutation.new
    return tuple(re.sub(r"[^\W\d]\w*", lambda m: m[0] if keyword.iskeyword(m[0]) else ".", text) for text in texts)


def folders_of(path: str) -> list[str]:
    """Return the test folders of a file of the package."""
    names = [name for room, names in TESTS.items() if f"{path}/".startswith(f"{room}/") for name in names]
    return [name for name in names if (CLONE / name).exists()]


def tests_of(path: str) -> list[str]:
    """Return the tests of a file, first those with its name, which find most errors."""
    folders, name = folders_of(path), f"test_*{Path(path).stem}*.py"
    return [*(str(file.relative_to(CLONE)) for folder in folders for file in (CLONE / folder).rglob(name)), *folders]


def run_tests(clone: Path, tests: list[str], timeout: float) -> tuple[str, str]:
    """Run tests; return `survived`, or `found` and the first test that failed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(clone), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-rfE", "-m", "not rare", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return "found", "did not end"
    if done.returncode in (4, 5):
        sys.exit(f"`{' '.join(tests)}` must be tests, but pytest says: {done.stderr.strip() or 'there are none'}")
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return ("survived", "") if done.returncode == 0 else ("found", failed[1] if failed else f"exit {done.returncode}")


def measure(mutations: list[Mutation], timeout: float) -> list[dict[str, object]]:
    """Try each mutation in a copy of the tree; return a row for each."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        shutil.copytree(CLONE, clone, ignore=NOT_COPIED)
        for tests in sorted({tuple(folders_of(mutation.path)) for mutation in mutations}):
            if (by := run_tests(clone, list(tests), timeout)[1]) or not tests:
                sys.exit(f"`{' '.join(tests)}` must pass before anything is broken, but fails in {by} instead.")
        for mutation in mutations:
            file, begin = clone / "fairseq_mtmoe" / mutation.path, time.monotonic()
            source = file.read_bytes()
            file.write_bytes(mutation.apply(source))
            result, by = run_tests(clone, tests_of(mutation.path), timeout)
            file.write_bytes(source)
            seconds = round(time.monotonic() - begin, 1)
            rows.append({"mutation": asdict(mutation), "result": result, "by": by, "seconds": seconds})
            print(line_of(rows[-1]), flush=True)
    return rows


def line_of(row: dict[str, object]) -> str:
    """Return a row of the table."""
    mutation = Mutation(**row["mutation"])
    old, new = ("`" + text.replace("|", r"\|") + "`" for text in (mutation.old, mutation.new))
    return f"| {mutation.path}:{mutation.number} | {old} → {new} | {row['result']} | {row['by']} |"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=ROOMS)
    parser.add_argument("--number", type=int, default=60, help="number of places to break")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--again", type=Path, help="earlier --out, whose mutations to repeat")
    parser.add_argument("--out", type=Path, default=CLONE / "runs" / "mutations" / "mutations.json")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for the tests of one mutation")
    options = parser.parse_args(arguments)
    rooms = [mutations_of_room(room) for room in options.rooms]
    rows = []
    if options.again:
        earlier = [(row, Mutation(**row["mutation"])) for row in json.loads(options.again.read_text(encoding="utf-8"))]
        found = [(row, find_again(mutation, [each for room in rooms for each in room])) for row, mutation in earlier]
        rows = [{**row, "result": "gone", "by": "", "seconds": 0} for row, mutation in found if mutation is None]
        chosen = [mutation for _, mutation in found if mutation is not None]
    else:
        chosen = draw(rooms, options.number, options.seed)
    rows += measure(chosen, options.timeout)
    counts = ", ".join(f"{number} {result}" for result, number in Counter(row["result"] for row in rows).items())
    table = "\n".join(["| place | mutation | result | by |", "|---|---|---|---|", *map(line_of, rows)])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    options.out.with_suffix(".md").write_text(f"{len(rows)} mutations: {counts}.\n\n{table}\n", encoding="utf-8")
    print(counts)


if __name__ == "__main__":
    main()
