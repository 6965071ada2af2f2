"""`python -m tests.fuzz [NAME …]`: each reader for its share of `FUZZ_MINUTES`, with files drawn from `FUZZ_SEED`."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import torch

from tests.fuzz import GROUPS, readers_of
from tests.fuzz.harness import tries


def main() -> int:
    """1 if there were findings, else 0."""
    seed = int(os.environ.get("FUZZ_SEED") or random.randrange(10**6))
    minutes = float(os.environ.get("FUZZ_MINUTES") or 10)
    kept = Path(os.environ.get("FUZZ_KEPT") or "runs/fuzz")
    torch.set_num_threads(1)
    readers = [one for group in GROUPS for one in readers_of(group) if one.name in (sys.argv[1:] or [one.name])]
    findings = 0
    for reader in readers:
        number = before = findings
        for number, found in enumerate(tries(reader, seed, kept, seconds=60 * minutes / len(readers)), start=1):
            findings += found is not None
            print(f"  {found}\n" * (found is not None), end="", flush=True)
        print(f"{reader.name}, FUZZ_SEED={seed}: {number} tries, {findings - before} findings", flush=True)
    return int(findings > 0)


if __name__ == "__main__":
    sys.exit(main())
