"""A pretrained encoder as one file, with all that a model built on it needs: sizes, tensors, and its tokenizer's files.

It is a file of `torch.save` with a checksum (`checkpoints/checksum.py`), of which loading executes nothing:
`{"encoder": sizes, "tokenizer": {name of a file: its text}, "model": tensors}`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_mtmoe.backbones.bert.config import EncoderConfig
from fairseq_mtmoe.backbones.bert.encoder import BertEncoder
from fairseq_mtmoe.backbones.blocks import SlotPlans
from fairseq_mtmoe.backbones.hugging_face import check_tensors, expect_no_checkpoint, read_imported
from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.errors import UserError

# Those of WordPiece and of byte-level BPE, in all versions.
TOKENIZER_FILES = (
    *("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt"),
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
)
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json")  # of which a tokenizer has one at least


@dataclass(frozen=True)
class PretrainedEncoder:
    """An encoder that was trained elsewhere.

    Attributes:
        config: its sizes.
        tokenizer: text of its tokenizer's files, by their names in Hugging Face's folder.
        state: a dense `BertEncoder`'s, in float32.
    """

    config: EncoderConfig
    tokenizer: dict[str, str]
    state: dict[str, Tensor]

    def build(self, slot_plans: SlotPlans | None = None, checkpoint_activations: bool = False) -> BertEncoder:
        """The encoder; what the plans put into slots must leave it dense until later."""
        encoder = BertEncoder(self.config, slot_plans, checkpoint_activations)
        encoder.load_state_dict(self.state)
        return encoder

    def save(self, path: str | Path) -> None:
        """Write the file, completely or not at all."""
        sizes = dataclasses.asdict(self.config)
        file_io.save({"encoder": sizes, "tokenizer": self.tokenizer, "model": self.state}, str(path))


def load(path: str | Path) -> PretrainedEncoder:
    """The encoder in a file of `PretrainedEncoder.save`.

    Raises:
        UserError: the file is missing, damaged or another, or what is in it does not fit together.
    """
    return read(path, read_imported(path))


def read(path: str | Path, content: Mapping[str, Any]) -> PretrainedEncoder:
    """The same of a file's content; `path` is for sentences."""
    expect_no_checkpoint(path, content)
    sizes, tokenizer, state = (content.get(name) for name in ("encoder", "tokenizer", "model"))
    if not (isinstance(sizes, dict) and isinstance(tokenizer, dict) and isinstance(state, dict)):
        raise UserError(f"`{path}` must be a file of `mtmoe import-hf`, but has no encoder with its tokenizer.")
    try:
        config = EncoderConfig(**sizes)
    except TypeError as error:
        raise UserError(f"`{path}` must be a file of `mtmoe import-hf`, but has other sizes: {error}.") from error
    if not all(name in TOKENIZER_FILES and isinstance(text, str) for name, text in tokenizer.items()):
        raise UserError(f"`{path}` must hold text of a tokenizer's files, but holds something else.")
    check_tensors(path, wanted_tensors(config), state)
    return PretrainedEncoder(config, tokenizer, state)


def wanted_tensors(config: EncoderConfig) -> dict[str, Tensor]:
    """The state of an encoder of these sizes, without values."""
    with torch.device("meta"):
        return BertEncoder(config).state_dict()
