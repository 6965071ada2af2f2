"""Sparse multilingual translation and multi-task learning for fairseq.

`fairseq-train DATA --user-dir "$(mtmoe user-dir)" …` imports this package and finds its models and
tasks. Importing `fairseq_mtmoe.moe`, the sparse layers, needs only torch. `load_translator` is for
use in Python.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairseq_mtmoe.translation.decode.text_translator import TextTranslator

__version__ = "1.0.0"

# Without this, CPU memory comes in 4 KiB pages, and writing fresh memory in every update is three
# times as slow. torch reads the variable on its first large allocation. A user who sets it to 0
# keeps small pages.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def register() -> None:
    """Register models, tasks, criterions and optimizers with fairseq; idempotent.

    fairseq's `--user-dir` registers nothing if the package was imported before, for example in a
    spawned worker. Therefore our commands and the import below call this function.
    """
    import argparse
    import importlib

    import torch

    from fairseq_mtmoe.core.known_warnings import filter_known
    from fairseq_mtmoe.training.fairseq import table

    filter_known()
    # fairseq's checkpoints store options in a Namespace, a plain container that is safe to
    # unpickle.
    torch.serialization.add_safe_globals([argparse.Namespace])
    table.apply()
    criterions = ("translation.criterion.moe_label_smoothed_cross_entropy", "nlu.criterion")
    tasks = ("nlu.task.glue", "nlu.task.text_to_text", "translation.task.task")
    for name in ("training.fused_adam", *criterions, *tasks, *systems()):
        importlib.import_module(f"{__name__}.{name}")


def systems() -> list[str]:
    """Return dotted names of the systems: folders with a README.md and a model.py.

    They are in the package, or in the folder of their subject.
    """
    package = Path(__file__).parent
    names = []
    for folder in (package, package / "translation", package / "nlu"):
        for readme in folder.glob("*/README.md"):
            if readme.with_name("model.py").exists():
                names.append(".".join(readme.parent.relative_to(package).parts))
    return sorted(names, key=lambda name: name.rpartition(".")[2])


def load_translator(
    model: str | os.PathLike[str],
    *more: str | os.PathLike[str],
    cpu: bool = False,
    fp16: bool = False,
    bf16: bool = False,
) -> TextTranslator:
    """Load a translator for plain text.

        translator = load_translator("model.pt")
        translator.translate(["Hello"], source="en", target="sw", beam=5)
        translator.score(["Hello"], ["Habari"], source="en", target="sw")

    Args:
        model: A checkpoint of `--task translation_heated`, or a file of `mtmoe import-hf`.
        more: Further models of an ensemble.
        cpu: Compute on the CPU even if there is a GPU.
        fp16: Compute in float16.
        bf16: Compute in bfloat16.

    Raises:
        UserError: A file is no checkpoint of a translator, or is damaged.
    """
    from fairseq_mtmoe.cli._shared import quiet_fairseq
    from fairseq_mtmoe.core.known_warnings import filter_known

    filter_known()
    with quiet_fairseq():
        register()
        from fairseq_mtmoe.translation.decode.decode import Decoding
        from fairseq_mtmoe.translation.decode.text_translator import TextTranslator

        paths = [os.fspath(path) for path in (model, *more)]
        return TextTranslator(paths, Decoding(cpu=cpu, fp16=fp16, bf16=bf16))


if "fairseq.models" in sys.modules:
    register()
