"""Checkpoint files with a pickle of one's own, as somebody writes them who means harm."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

PROTO, STOP = b"\x80\x02", b"."


def write_pickle(path: Path, pickled: bytes, compression: int = zipfile.ZIP_STORED, **records: bytes) -> Path:
    """An archive as `torch.save` writes it, whose `data.pkl` is this."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/byteorder", b"little")
        for name, content in records.items():
            archive.writestr(f"archive/data/{name.removeprefix('_')}", content)
        archive.writestr("archive/version", b"3\n")
    return path


def unicode(text: str) -> bytes:
    """The pickle's instruction for a text."""
    data = text.encode()
    return b"X" + len(data).to_bytes(4, "little") + data


def under_model(value: bytes) -> bytes:
    """The pickle of `{"model": {"w": value}}`."""
    return PROTO + b"}" + unicode("model") + b"}" + unicode("w") + value + b"ss" + STOP


def tensor(size: tuple[int, ...], stride: tuple[int, ...], elements: int = 1, key: str = "0") -> bytes:
    """The pickle of a float tensor over a storage of so many elements."""
    storage = b"(" + unicode("storage") + b"ctorch\nFloatStorage\n" + unicode(key) + unicode("cpu")
    storage += pickle.dumps(elements, 2)[2:-1] + b"tQ"
    numbers = b"".join(b"(" + b"".join(map(_number, values)) + b"t" for values in (size, stride))
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00" + numbers + b"\x89}tR"


def _number(value: int) -> bytes:
    return pickle.dumps(value, 2)[2:-1]


def nested(levels: int) -> dict[str, Any]:
    """Dictionaries, each twice in the next: small in a file, 2 to this power where they are copied."""
    value: dict[str, Any] = {"x": 1}
    for _ in range(levels):
        value = {"a": value, "b": value}
    return value


def checkpoint(**parts: Any) -> dict[str, Any]:
    """A whole checkpoint of fairseq's form, with other parts where they are given."""
    return {
        "args": None, "cfg": {"model": {"_name": "transformer"}, "task": {"_name": "translation"}},
        "model": {"w": torch.zeros(3)}, "optimizer_history": [{"num_updates": 2, "optimizer_name": "FairseqAdam",
        "lr_scheduler_state": {"best": None}}], "extra_state": {"train_iterator": {"epoch": 1}},
    } | parts  # fmt: skip
