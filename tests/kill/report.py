"""`make test-kill`: every case, one after the other, and a table of what came of them in `benchmarks/results/kills.md`.

python -m tests.kill.report [--seed 1] [--only PHASE] [--write]
"""

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from measure import RESULTS
from timing import surroundings, where_and_how

from fairseq_mtmoe.io.files import write_text
from fairseq_mtmoe.io.tables import markdown_table
from tests.kill.moments import ALL, Case, drawn
from tests.kill.runs import Outcome, References, is_equal

COLUMNS = ("killed in", "moment", "processes", "resumed by", "equal", "largest difference", "leftover files")
TEXT = """# Runs that were killed with signal 9

{surroundings}

A small real run of `fairseq-train` (60 updates in 3 epochs, dense for 32 of them, 6 saves and validations; of
translation, of a benchmark's tasks, or dense, of one of PEMT's stages) is killed at a moment, started again with the
same command, and left to end; then all its checkpoints are compared with those of a run that nobody killed: parameters,
the optimizer's moments, the place in the data, the losses. One process must end bit for bit equal, several within
1e-6. The moments of each phase are drawn by a seed ({seed}).

Of two processes one is killed, and the other must end by itself with an error; all experts are exchanged between them
once it is sparse. Where two are resumed by one process, it makes updates of two batches each, the model has task gates
and no dropout, which are the same in any number of processes, and Adam's epsilon is 1e-3: with 1e-8 it turns the
rounding of gradients that are zero, those of the keys' biases, into steps of 1e-5 to 1e-4.

**{equal} of {count} resumed equal.** {seconds:.0f} seconds.

{table}
"""


def row(case: Case, outcome: Outcome) -> tuple[str, ...]:
    moments = "; then ".join(moment.in_words() for moment in case.moments)
    equal = "yes" if is_equal(case, outcome) else "**no**"
    leftovers = ", ".join(outcome.leftovers) or "none"
    figures = (str(case.processes), str(case.resumed_by), equal, f"{outcome.difference:.3g}", leftovers)
    return (case.phase, moments, *figures)


def kill_all(folder: Path, seed: int, only: str) -> list[tuple[str, ...]]:
    """The rows of the table."""
    references = References(folder)
    chosen = [case for case in ALL if only in f"{case.phase}, {case.processes}"]
    for case in chosen:
        references.calls(case)  # also where it draws nothing, something must be there to compare with
    cases = drawn(chosen, seed, references.calls)

    def outcome(number: int) -> Outcome:
        try:
            return references.killed(cases[number], folder / f"run{number}")
        except AssertionError as error:
            print(error, file=sys.stderr)
            return Outcome(math.nan, ("did not resume",))

    rows = []
    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:  # a save waits for the disk
        for case, found in zip(cases, pool.map(outcome, range(len(cases))), strict=True):
            rows.append(row(case, found))
            print(" | ".join(rows[-1]), flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="only cases with this in phase and processes, such as 'a save, 2'")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/kills.md")
    options = parser.parse_args(arguments)
    found, start = {**surroundings(), "command": "make test-kill"}, time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        rows = kill_all(Path(folder), options.seed, options.only)
    equal = sum("yes" in one for one in rows)
    print(f"{equal} of {len(rows)} resumed equal")
    if options.write:
        figures = dict(seed=options.seed, equal=equal, count=len(rows), seconds=time.perf_counter() - start)
        text = TEXT.format(surroundings=where_and_how(found), table=markdown_table(COLUMNS, rows), **figures)
        write_text(RESULTS / "kills.md", text)
    return int(equal < len(rows))


if __name__ == "__main__":
    sys.exit(main())
