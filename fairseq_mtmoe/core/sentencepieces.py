"""SentencePiece models: load one to split text, and parse its serialized message."""

from typing import Any

from google.protobuf.message import DecodeError
from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2

from fairseq_mtmoe.core.errors import UserError

# A message, whose fields are in sentencepiece_model.proto
ModelProto: Any = sentencepiece_model_pb2.ModelProto  # type: ignore[attr-defined]


def load_sentencepiece(model: bytes) -> SentencePieceProcessor:
    """Return the processor of a serialized model (RuntimeError: it is damaged)."""
    processor = SentencePieceProcessor()
    processor.load_from_serialized_proto(model)  # the constructor takes an empty file for no file
    try:
        processor.id_to_piece(list(range(processor.get_piece_size())))
    except UnicodeDecodeError as error:
        raise RuntimeError("a piece is not UTF-8") from error
    return processor


def parse_model(model: bytes) -> Any:
    """Return the `ModelProto` of a serialized model (UserError: it is damaged)."""
    try:
        return ModelProto.FromString(model)
    except DecodeError as error:
        raise UserError("A SentencePiece model must be whole, but is damaged.") from error


def serialized_pieces(scores: dict[str, float]) -> bytes:
    """Return normal pieces as a message.

    The message extends the model that it is appended to.
    """
    added = ModelProto()
    for piece, score in scores.items():
        added.pieces.add(piece=piece, score=score, type=ModelProto.SentencePiece.NORMAL)
    return bytes(added.SerializePartialToString())
