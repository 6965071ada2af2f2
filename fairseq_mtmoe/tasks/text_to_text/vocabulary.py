"""fairseq's dictionary of a T5's pieces, under T5's own numbers."""

from __future__ import annotations

from fairseq.data import Dictionary

from fairseq_mtmoe.data.nlu.pieces import END, PADDING, UNKNOWN, Pieces
from fairseq_mtmoe.errors import UserError, must_be

SENTINELS = 100  # `<extra_id_99>` to `<extra_id_0>` follow T5's pieces, and then numbers that nothing has


def begun_dictionary() -> Dictionary:
    """That of the first three pieces; fairseq asks for a task's dictionary before it reads a checkpoint."""
    return Dictionary(bos=PADDING, pad=PADDING, eos=END, unk=UNKNOWN)


def fill_dictionary(dictionary: Dictionary, pieces: Pieces, vocab_size: int) -> None:
    """Add the other pieces, sentinels, and what else has an embedding.

    Args:
        dictionary: begun, or filled before with the same.
        pieces: of the T5.
        vocab_size: of the T5.

    Raises:
        UserError: there are more pieces than embeddings, or two are the same.
    """
    if len(pieces) > vocab_size:
        must_be(
            "spiece.model", f"a model of at most as many pieces as the T5 has embeddings, {vocab_size}", len(pieces)
        )
    if len(dictionary) == vocab_size:
        return
    named = list(pieces)
    for number in range(len(pieces), vocab_size):
        sentinel = len(pieces) + SENTINELS - 1 - number
        named.append(f"<extra_id_{sentinel}>" if sentinel >= 0 else f"<unused_{number}>")
    for symbol in named[len(dictionary) :]:
        dictionary.add_symbol(symbol)
    if len(dictionary) != vocab_size:
        raise UserError("`spiece.model` must have no piece twice, and none that is called as T5's sentinels are.")
