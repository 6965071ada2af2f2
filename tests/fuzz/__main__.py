"""`python -m tests.fuzz [NAME …]`: each reader for its share of `FUZZ_MINUTES`, with files drawn from `FUZZ_SEED`."""

import collections
import os
import random
import sys
from pathlib import Path

import torch

from tests.fuzz import all_readers
from tests.fuzz.harness import tries


def main() -> int:
    """The number of findings, 0 or 1."""
    seed = int(os.environ.get("FUZZ_SEED") or random.randrange(10**6))
    minutes = float(os.environ.get("FUZZ_MINUTES") or 10)
    kept = Path(os.environ.get("FUZZ_KEPT") or "runs/fuzz")
    readers = [reader for reader in all_readers() if not sys.argv[1:] or reader.name in sys.argv[1:]]
    torch.set_num_threads(1)
    findings = 0
    for reader in readers:
        print(f"{reader.name}: FUZZ_SEED={seed}", flush=True)
        counts = collections.Counter()
        for found in tries(reader, seed, kept, seconds=60 * minutes / len(readers)):
            counts[found is None] += 1
            if found is not None:
                print(f"  {found}", flush=True)
        findings += counts[False]
        print(f"  {counts.total()} tries, {counts[False]} findings", flush=True)
    return int(findings > 0)


if __name__ == "__main__":
    sys.exit(main())
