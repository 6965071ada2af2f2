"""Models of SentencePiece from what a `tokenizer.json` of Hugging Face's has of them, in protobuf's format."""

import base64
from collections.abc import Iterable, Mapping
from typing import Any

from fairseq_mtmoe.io.protobuf import binary, number, real

# Kinds of pieces, and of models, as SentencePiece numbers them.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
UNIGRAM, BPE = 1, 2
_TRAINER, _MODEL_TYPE = 2, 3  # the numbers of the fields that say which a model is
# What `transformers` does beside the table of characters is what SentencePiece does with spaces.
_SPACES = (
    {"type": "Strip", "strip_left": False, "strip_right": True},
    *({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": space} for space in ("▁", " ")),
)
_METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}


def character_table(normalizer: Mapping[str, Any] | None) -> bytes:
    """Return what SentencePiece calls its precompiled map; empty where characters stay as they are (ValueError)."""
    parts = [] if normalizer is None else normalizer.get("normalizers", [normalizer])
    tables = [part["precompiled_charsmap"] for part in parts if part["type"] == "Precompiled"]
    if len(tables) > 1 or any(part["type"] != "Precompiled" and part not in _SPACES for part in parts):
        raise ValueError("it normalizes text in another way")
    return base64.b64decode(tables[0], validate=True) if tables else b""


def check_pre_tokenizer(pre_tokenizer: Mapping[str, Any]) -> None:
    """Raise `ValueError` where text is split in another way than SentencePiece's."""
    parts = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    if [part for part in parts if part != {"type": "WhitespaceSplit"}] != [_METASPACE]:
        raise ValueError("it splits text in another way")


def serialized(
    pieces: Iterable[tuple[str, float, int]], table: bytes, special: Mapping[str, int], model_type: int = UNIGRAM
) -> bytes:
    """Return a `ModelProto` of pieces, their scores and kinds.

    table: of characters, see `character_table`. special: the ids of the pieces `unk`, `bos`, `eos` and `pad`, or -1.
    """
    rows = list(pieces)
    listed = (binary(1, binary(1, piece.encode()) + real(2, score) + number(3, kind)) for piece, score, kind in rows)
    names = ("unk", "bos", "eos", "pad")
    ids = b"".join(number(40 + at, special[name]) for at, name in enumerate(names))
    spelled = b"".join(
        binary(45 + at, rows[special[name]][0].encode()) for at, name in enumerate(names) if special[name] >= 0
    )
    trainer = number(_MODEL_TYPE, model_type) + number(4, len(rows)) + ids + spelled
    # Spaces: a word begins with one, several are one, and "▁" stands for them.
    normalizer = binary(1, b"nmt_nfkc" if table else b"identity") + binary(2, table)
    normalizer += number(3, 1) + number(4, 1) + number(5, 1)
    return b"".join(listed) + binary(_TRAINER, trainer) + binary(3, normalizer)
