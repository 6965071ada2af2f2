"""Convert Hugging Face's `tokenizer.json` to a SentencePiece model."""

import base64
from collections.abc import Iterable, Mapping
from typing import Any

from fairseq_mtmoe.io.protobuf import binary, number, real

# SentencePiece's numbers of piece kinds and model types
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
UNIGRAM, BPE = 1, 2
_TRAINER, _MODEL_TYPE = 2, 3  # field numbers of a model's type
# SentencePiece's treatment of spaces, which `transformers` writes as normalizers beside the table of characters
_SPACES = (
    {"type": "Strip", "strip_left": False, "strip_right": True},
    *({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": space} for space in ("▁", " ")),
)
_METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}


def character_table(normalizer: Mapping[str, Any] | None) -> bytes:
    """Return SentencePiece's precompiled map of characters, or b"" for none.

    Raises `ValueError`: another normalizer.
    """
    parts = [] if normalizer is None else normalizer.get("normalizers", [normalizer])
    tables = [part["precompiled_charsmap"] for part in parts if part["type"] == "Precompiled"]
    if len(tables) > 1 or any(part["type"] != "Precompiled" and part not in _SPACES for part in parts):
        raise ValueError("it normalizes text in another way")
    return base64.b64decode(tables[0], validate=True) if tables else b""


def check_pre_tokenizer(pre_tokenizer: Mapping[str, Any]) -> None:
    """Raise a `ValueError` if text is split differently from SentencePiece."""
    parts = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    if [part for part in parts if part != {"type": "WhitespaceSplit"}] != [_METASPACE]:
        raise ValueError("it splits text in another way")


def serialized(
    pieces: Iterable[tuple[str, float, int]], table: bytes, special: Mapping[str, int], model_type: int = UNIGRAM
) -> bytes:
    """Return a `ModelProto` with these pieces.

    pieces: (piece, score, kind). table: see `character_table`. special: ids of `unk`, `bos`, `eos` and `pad`; -1: none.
    """
    rows = list(pieces)
    listed = (binary(1, binary(1, piece.encode()) + real(2, score) + number(3, kind)) for piece, score, kind in rows)
    names = ("unk", "bos", "eos", "pad")
    ids = b"".join(number(40 + at, special[name]) for at, name in enumerate(names))
    spelled = b"".join(
        binary(45 + at, rows[special[name]][0].encode()) for at, name in enumerate(names) if special[name] >= 0
    )
    trainer = number(_MODEL_TYPE, model_type) + number(4, len(rows)) + ids + spelled
    # Add a space before the text, merge repeated spaces, and write "▁" for a space
    normalizer = binary(1, b"nmt_nfkc" if table else b"identity") + binary(2, table)
    normalizer += number(3, 1) + number(4, 1) + number(5, 1)
    return b"".join(listed) + binary(_TRAINER, trainer) + binary(3, normalizer)
