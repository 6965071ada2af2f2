"""fairseq_mtmoe: sparse multilingual translation, and the multi-task learning around it, as a fairseq `--user-dir`.

`fairseq-train DATA --user-dir fairseq_mtmoe …` imports this package and finds its models and tasks. Importing
`fairseq_mtmoe.moe`, the sparse layers alone, needs torch and nothing else. `load_translator` is for use in Python.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairseq_mtmoe.evaluation.text_translator import TextTranslator

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


def load_translator(
    model: str | os.PathLike[str], *more: str | os.PathLike[str], data: str | os.PathLike[str] | None = None,
    cpu: bool = False, fp16: bool = False, bf16: bool = False,
) -> TextTranslator:  # fmt: skip
    """Load a translator, which translates and scores text by the vocabulary in its file.

        translator = load_translator("model.pt")
        translator.translate(["Hello"], source="en", target="sw", beam=5)
        translator.score(["Hello"], ["Habari"], source="en", target="sw")

    Args:
        model: A checkpoint of `--task translation_heated`, or a file of `mtmoe import-hf`.
        more: Further models: together they are an ensemble.
        data: The run's data directory, whose vocabulary a checkpoint of before 0.1.14 lacks; by default where it was.
        cpu: Do not use a GPU.
        fp16: Half precision.
        bf16: Half precision with float32's range.

    Raises:
        UserError: a file is no checkpoint of a translator, or is damaged.
    """
    from fairseq_mtmoe.cli._shared import quiet_fairseq
    from fairseq_mtmoe.known_warnings import filter_known

    filter_known()
    with quiet_fairseq():
        register()
        from fairseq_mtmoe.evaluation.text_translator import TextTranslator
        from fairseq_mtmoe.evaluation.translator import Decoding

        paths = [os.fspath(path) for path in (model, *more)]
        return TextTranslator(paths, Decoding(cpu=cpu, fp16=fp16, bf16=bf16), None if data is None else os.fspath(data))


if "fairseq.models" in sys.modules:
    register()
