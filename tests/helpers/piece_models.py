"""Small SentencePiece models."""

import io
from collections.abc import Iterable
from typing import Any

import sentencepiece


def trained_pieces(text: Iterable[str], kind: str = "bpe", size: int = 60, **options: Any) -> bytes:
    """A model of at most `size` pieces for these lines; `options` are SentencePiece's."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_writer=model, minloglevel=3, num_threads=1,
        **{"model_type": kind, "vocab_size": size, "hard_vocab_limit": False, "character_coverage": 1.0, **options},
    )  # fmt: skip
    return model.getvalue()


def names_of(model: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(index) for index in range(processor.get_piece_size())]


def pieces_of(model: bytes) -> list[str]:
    """Its pieces without the special ones."""
    return names_of(model)[3:]
