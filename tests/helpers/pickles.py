"""Checkpoint files with a pickle of one's own, and checkpoints with parts of one's own."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import torch


def write_pickle(path: Path, pickled: bytes, compression: int = zipfile.ZIP_STORED, **records: bytes) -> Path:
    """An archive as `torch.save` writes it, whose `data.pkl` is this."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/byteorder", b"little")
        for name, content in records.items():
            archive.writestr(f"archive/data/{name.removeprefix('_')}", content)
        archive.writestr("archive/version", b"3\n")
    return path


def checkpoint(**parts: Any) -> dict[str, Any]:
    """A whole checkpoint of fairseq's form, with other parts where they are given."""
    return {
        "args": None, "cfg": {"model": {"_name": "transformer"}, "task": {"_name": "translation"}},
        "model": {"w": torch.zeros(3)}, "optimizer_history": [{"num_updates": 2, "optimizer_name": "FairseqAdam",
        "lr_scheduler_state": {"best": None}}], "extra_state": {"train_iterator": {"epoch": 1}},
    } | parts  # fmt: skip
