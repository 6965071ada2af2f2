"""fairseq_mtmoe: sparse multilingual translation, and the multi-task learning around it, as a fairseq `--user-dir`.

`fairseq-train DATA --user-dir fairseq_mtmoe …` imports this package and finds its models and tasks. Importing
`fairseq_mtmoe.moe`, the sparse layers alone, needs torch and nothing else.
"""

import os
import sys

__version__ = "0.1.14"

# A CPU's memory comes in pages of 4 KiB unless torch asks for large ones, and what is fresh in every update is then
# written three times as slowly. torch reads this when it first needs much memory; set it to 0 beforehand to keep small
# pages.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def register() -> None:
    """Make the plugin's models, tasks, criterions and optimizers known to fairseq. Safe to call any number of times.

    fairseq's `--user-dir` registers nothing when the package was imported before, in a spawned worker for example;
    our own commands and the import below therefore call this themselves.
    """
    import argparse
    import importlib

    import torch

    from fairseq_mtmoe.fairseq_patches import table
    from fairseq_mtmoe.known_warnings import filter_known
    from fairseq_mtmoe.models import systems
    from fairseq_mtmoe.training import launch

    filter_known()
    # fairseq's checkpoints hold their options as a Namespace: a plain container, and safe to unpickle.
    torch.serialization.add_safe_globals([argparse.Namespace])
    table.apply()
    launch.register = register
    for name in ("optim.fused_adam", "tasks", *(f"models.{system}" for system in systems())):
        importlib.import_module(f"{__name__}.{name}")


if "fairseq.models" in sys.modules:
    register()
