"""A pretrained T5 as one file, with all that a model built on it needs: sizes, tensors, and its SentencePiece model.

It is a file of `torch.save` with a checksum (`checkpoints/checksum.py`), of which loading executes nothing:
`{"t5": sizes, "sentencepiece": its bytes, as a tensor, "model": tensors}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_mtmoe.backbones.hugging_face import check_tensors, expect_no_checkpoint, read_imported
from fairseq_mtmoe.backbones.t5.config import T5Config
from fairseq_mtmoe.backbones.t5.model import T5Model, bare_state
from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.errors import UserError

KIND = "t5"


@dataclass(frozen=True)
class PretrainedT5:
    """A T5 that was trained elsewhere.

    Attributes:
        config: its sizes.
        sentencepiece: the content of its `spiece.model`.
        state: of a `T5Model` without slots in float32, in which each tensor is there once.
    """

    config: T5Config
    sentencepiece: bytes
    state: dict[str, Tensor]

    def save(self, path: str | Path) -> None:
        """Write the file, completely or not at all."""
        pieces = torch.from_numpy(np.frombuffer(self.sentencepiece, dtype=np.uint8).copy())
        content = {KIND: self.config.sizes, "sentencepiece": pieces, "model": self.state}
        file_io.save(content, str(path))


def load(path: str | Path) -> PretrainedT5:
    """The T5 in a file of `PretrainedT5.save`.

    Raises:
        UserError: the file is missing, damaged or another, or what is in it does not fit together.
    """
    return read(path, read_imported(path))


def read(path: str | Path, content: Mapping[str, Any]) -> PretrainedT5:
    """The same of a file's content; `path` is for sentences."""
    expect_no_checkpoint(path, content)
    sizes, pieces, state = (content.get(name) for name in (KIND, "sentencepiece", "model"))
    if not (isinstance(sizes, dict) and isinstance(state, dict) and torch.is_tensor(pieces)):
        raise UserError(f"`{path}` must be a file of `mtmoe import-hf` with a T5, but has none.")
    try:
        config = T5Config(**sizes)
    except TypeError as error:
        raise UserError(f"`{path}` must be a file of `mtmoe import-hf`, but has other sizes: {error}.") from error
    if pieces.dtype != torch.uint8 or not pieces.numel():
        raise UserError(f"`{path}` must hold a model of SentencePiece, but holds none.")
    check_tensors(path, wanted_tensors(config), state)
    return PretrainedT5(config, pieces.numpy().tobytes(), state)


def wanted_tensors(config: T5Config) -> dict[str, Tensor]:
    """The state of a T5 of these sizes, each tensor once, without values."""
    with torch.device("meta"):
        return bare_state(T5Model(config, Dictionary()).state_dict(), config)
