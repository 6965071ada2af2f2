"""Small checkpoint files with a checksum and without, whole and damaged, new and old."""

import os
from pathlib import Path

import torch

from fairseq_mtmoe.checkpoints.checksum import write_checksum
from fairseq_mtmoe.checkpoints.file_io import CheckpointFile


def without_checksum(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"w": torch.arange(100.0), "n": 3}, path)
    return path


def with_checksum(path: Path) -> Path:
    write_checksum(without_checksum(path))
    return path


def change(path: Path, offset: int, bits: int = 1) -> Path:
    data = bytearray(path.read_bytes())
    data[offset] ^= bits
    path.write_bytes(data)
    return path


def dated(path: Path, time: int) -> Path:
    """Say that the file was written so many seconds after 1970 began."""
    os.utime(path, (time, time))
    return path


def verify(path: str | Path) -> str | None:
    with CheckpointFile(path) as file:
        return file.digest
