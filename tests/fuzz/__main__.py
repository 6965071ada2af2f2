"""`make test-fuzz`, new files for whatever reads files: `python -m tests.fuzz [NAME …]`.

Each reader has its share of `FUZZ_MINUTES`, with files drawn from `FUZZ_SEED`.

A name is a reader's or a group's. `FUZZ_TRIES` limits the tries of each reader.
"""

import os
import random
import sys
import time
from pathlib import Path

import torch

from tests.fuzz import files
from tests.fuzz.harness import attempt, import_all


def main() -> int:
    seed = int(os.environ.get("FUZZ_SEED") or random.randrange(10**6))
    minutes = float(os.environ.get("FUZZ_MINUTES") or 10)
    kept = Path(os.environ.get("FUZZ_KEPT") or "runs/fuzz")
    torch.set_num_threads(1)
    number = int(os.environ.get("FUZZ_TRIES") or 10**9)
    names = set(sys.argv[1:])
    import_all()
    groups = dict(checkpoints=files.CHECKPOINTS, logs=files.LOGS, corpora=files.CORPORA, models=files.MODELS)
    readers = [one for name, group in groups.items() for one in group if not names or {name, one.name} & names]
    findings = 0
    for reader in readers:
        print(f"{reader.name}: FUZZ_SEED={seed}", flush=True)
        before, made, end = findings, 0, time.monotonic() + 60 * minutes / len(readers)
        while made < number and time.monotonic() < end:
            if (found := attempt(reader, f"{seed}-{made}", kept)) is not None:
                findings += 1
                print(f"  {found.what}; files in {found.folder}", flush=True)
            made += 1
        print(f"  {made} tries, {findings - before} findings", flush=True)
    return int(findings > 0)


if __name__ == "__main__":
    sys.exit(main())
