"""A T5's `spiece.model` from the `tokenizer.json` that `transformers` 5 saves in its place.

`tokenizer.json` has the pieces with their scores and the table of normalized characters, which is all that a unigram
model of SentencePiece consists of. The file is written in protobuf's format (`sentencepiece_model.proto`).
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Mapping
from typing import Any

from fairseq_mtmoe.errors import UserError

SENTINEL = re.compile(r"<extra_id_\d+>")  # 100 of them follow the pieces, and are none
SPECIAL = ("<pad>", "</s>", "<unk>")  # pieces 0, 1 and 2
# Kinds of pieces, and of models, as SentencePiece numbers them.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
UNIGRAM = 1
# What `transformers` 4 does beside the table of characters is what SentencePiece does with spaces.
_SPACES = ({"type": "Strip", "strip_left": False, "strip_right": True},
           {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"})  # fmt: skip
_METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}


def spiece_of(tokenizer: Any) -> bytes:
    """Return the content of the `spiece.model` that a T5's `tokenizer.json` was made from.

    Args:
        tokenizer: the value in `tokenizer.json`.

    Raises:
        UserError: it is of another kind of tokenizer than T5's.
    """
    try:
        vocabulary = tokenizer["model"]["vocab"]
        if tokenizer["model"]["type"] != "Unigram" or tokenizer["model"]["unk_id"] != SPECIAL.index("<unk>"):
            raise ValueError("its pieces are no unigram model's")
        table = _character_table(tokenizer["normalizer"])
        _check_pre_tokenizer(tokenizer["pre_tokenizer"])
        while vocabulary and SENTINEL.fullmatch(vocabulary[-1][0]):
            vocabulary = vocabulary[:-1]
        if [piece for piece, _ in vocabulary[:3]] != list(SPECIAL):
            raise ValueError("its first pieces are others")
        defined = {token["content"] for token in tokenizer["added_tokens"]}
        return _serialized([(piece, float(score), _kind(piece, defined)) for piece, score in vocabulary], table)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, struct.error) as error:
        raise UserError(
            "`tokenizer.json` must be a T5's where there is no `spiece.model` beside it, but is not: take the "
            "`spiece.model` of the T5 that this one was trained from."
        ) from error


def _kind(piece: str, defined: set[str]) -> int:
    if piece in SPECIAL:
        return UNKNOWN if piece == "<unk>" else CONTROL
    return USER_DEFINED if piece in defined else NORMAL


def _character_table(normalizer: Mapping[str, Any] | None) -> bytes:
    """What SentencePiece calls its precompiled map; empty where characters stay as they are."""
    parts = [] if normalizer is None else normalizer.get("normalizers", [normalizer])
    tables = [part["precompiled_charsmap"] for part in parts if part["type"] == "Precompiled"]
    if len(tables) > 1 or any(part["type"] != "Precompiled" and part not in _SPACES for part in parts):
        raise ValueError("it normalizes text in another way")
    return base64.b64decode(tables[0], validate=True) if tables else b""


def _check_pre_tokenizer(pre_tokenizer: Mapping[str, Any]) -> None:
    parts = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    if [part for part in parts if part != {"type": "WhitespaceSplit"}] != [_METASPACE]:
        raise ValueError("it splits text in another way")


def _serialized(pieces: list[tuple[str, float, int]], table: bytes) -> bytes:
    """A `ModelProto`; the numbers are its fields'."""
    listed = (
        _bytes(1, _bytes(1, piece.encode()) + _float(2, score) + _number(3, kind)) for piece, score, kind in pieces
    )
    ids = _number(40, 2) + _number(41, -1) + _number(42, 1) + _number(43, 0)  # of unknown, begin (none), end, padding
    names = _bytes(45, b"<unk>") + _bytes(47, b"</s>") + _bytes(48, b"<pad>")
    trainer = _number(3, UNIGRAM) + _number(4, len(pieces)) + ids + names
    # Spaces: a word begins with one, several are one, and "▁" stands for them.
    normalizer = _bytes(1, b"nmt_nfkc" if table else b"identity") + _bytes(2, table)
    normalizer += _number(3, 1) + _number(4, 1) + _number(5, 1)
    return b"".join(listed) + _bytes(2, trainer) + _bytes(3, normalizer)


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # two's complement
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _float(field: int, value: float) -> bytes:
    return _varint(field << 3 | 5) + struct.pack("<f", value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value
