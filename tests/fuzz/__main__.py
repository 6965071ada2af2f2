"""`python -m tests.fuzz [NAME …]`: each reader for its share of `FUZZ_MINUTES`, with files drawn from `FUZZ_SEED`.

A name is a reader's or a group's. `FUZZ_TRIES` limits the tries of each reader.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import torch

from tests.fuzz import GROUPS, readers_of
from tests.fuzz.harness import tries


def main() -> int:
    seed = int(os.environ.get("FUZZ_SEED") or random.randrange(10**6))
    minutes = float(os.environ.get("FUZZ_MINUTES") or 10)
    kept = Path(os.environ.get("FUZZ_KEPT") or "runs/fuzz")
    torch.set_num_threads(1)
    number = int(os.environ.get("FUZZ_TRIES") or 10**9)
    names = set(sys.argv[1:])
    readers = [one for group in GROUPS for one in readers_of(group) if not names or {group, one.name} & names]
    findings = 0
    for reader in readers:
        print(f"{reader.name}: FUZZ_SEED={seed}", flush=True)
        made = found_here = 0
        for found in tries(reader, seed, kept, number, 60 * minutes / len(readers)):
            made += 1
            if found is not None:
                found_here += 1
                print(f"  {found}", flush=True)
        print(f"  {made} tries, {found_here} findings", flush=True)
        findings += found_here
    return int(findings > 0)


if __name__ == "__main__":
    sys.exit(main())
