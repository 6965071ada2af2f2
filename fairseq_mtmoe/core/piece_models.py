"""Convert Hugging Face's `tokenizer.json` to a SentencePiece model."""

import base64
from collections.abc import Iterable, Mapping
from typing import Any

from fairseq_mtmoe.core.sentencepieces import ModelProto

# SentencePiece's numbers of piece kinds and model types
NORMAL = 1
UNKNOWN = 2
CONTROL = 3
USER_DEFINED = 4
UNIGRAM = 1
BPE = 2
# SentencePiece's treatment of spaces.
# `transformers` writes it as normalizers beside the table of characters.
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
    if len(tables) > 1 or any(
        part["type"] != "Precompiled" and part not in _SPACES for part in parts
    ):
        raise ValueError("it normalizes text in another way")
    return base64.b64decode(tables[0], validate=True) if tables else b""


def check_pre_tokenizer(pre_tokenizer: Mapping[str, Any]) -> None:
    """Raise a `ValueError` if text is split differently from SentencePiece."""
    parts = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    if [part for part in parts if part != {"type": "WhitespaceSplit"}] != [_METASPACE]:
        raise ValueError("it splits text in another way")


def serialized(
    pieces: Iterable[tuple[str, float, int]],
    table: bytes,
    special: Mapping[str, int],
    model_type: int = UNIGRAM,
) -> bytes:
    """Return a `ModelProto` with these pieces.

    pieces: (piece, score, kind). table: see `character_table`. special: ids of `unk`, `bos`, `eos`
    and `pad`; -1: none.
    """
    model = ModelProto()
    for piece, score, kind in pieces:
        model.pieces.add(piece=piece, score=score, type=kind)
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    trainer.model_type = model_type
    trainer.vocab_size = len(model.pieces)
    for name, identity in special.items():
        setattr(trainer, f"{name}_id", identity)
        if identity >= 0:
            setattr(trainer, f"{name}_piece", model.pieces[identity].piece)
    normalizer.name = "nmt_nfkc" if table else "identity"
    normalizer.precompiled_charsmap = table
    normalizer.add_dummy_prefix = True
    normalizer.remove_extra_whitespaces = True
    normalizer.escape_whitespaces = True
    return bytes(model.SerializeToString())
