"""Load a SentencePiece model, and read all of it at once."""

from sentencepiece import SentencePieceProcessor


def load_sentencepiece(model: bytes) -> SentencePieceProcessor:
    """Return the processor of a serialized model (RuntimeError: it is damaged)."""
    processor = SentencePieceProcessor()
    processor.load_from_serialized_proto(model)  # the constructor takes an empty file for no file
    try:
        processor.id_to_piece(list(range(processor.get_piece_size())))
    except UnicodeDecodeError as error:
        raise RuntimeError("a piece is not UTF-8") from error
    return processor
