"""From texts to the pieces of a T5's SentencePiece model, and back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import sentencepiece

from fairseq_mtmoe.data.nlu.token_runs import TokenRuns
from fairseq_mtmoe.errors import UserError, first_line

PADDING, END, UNKNOWN = "<pad>", "</s>", "<unk>"  # T5's pieces 0, 1 and 2


class Pieces:
    """A model of SentencePiece whose first pieces are T5's.

    Raises:
        UserError: it is none, or its first pieces are others.
    """

    padding, end, unknown = range(3)

    def __init__(self, model: bytes) -> None:
        try:
            self._model = sentencepiece.SentencePieceProcessor(model_proto=model)
            list(self)  # a damaged piece is no text
        except Exception as error:  # the library raises nothing more precise
            raise UserError(f"`spiece.model` must be a model of SentencePiece, but {first_line(error)}.") from error
        found = (self._model.pad_id(), self._model.eos_id(), self._model.unk_id())
        if found != (self.padding, self.end, self.unknown):
            raise UserError(
                f"`spiece.model` must have {PADDING}, {END} and {UNKNOWN} as its pieces 0, 1 and 2, as T5 has, but has "
                f"them as {', '.join(map(str, found))}."
            )
        self.fingerprint = hashlib.sha256(model).hexdigest()

    def __len__(self) -> int:
        return int(self._model.get_piece_size())

    def __iter__(self) -> Iterator[str]:
        """The pieces, in the order of their numbers."""
        return (str(self._model.id_to_piece(number)) for number in range(len(self)))

    def numbers(self, text: str) -> list[int]:
        """The pieces of a text, without an end."""
        found: list[int] = self._model.encode(text, out_type=int)
        return found

    def runs(self, texts: Sequence[str], most: int) -> tuple[TokenRuns, int]:
        """The pieces of texts, each with an end, and how many texts lost theirs.

        Args:
            texts: of any lengths.
            most: pieces that are kept of a text, the end included.
        """
        # A file of JSON can name half of a character, which the library refuses: a question mark has its place.
        whole = [text.encode("utf-8", errors="replace").decode("utf-8") for text in texts]
        numbers = self._model.encode(whole, out_type=int)
        too_long = sum(len(of_one) >= most for of_one in numbers)
        return TokenRuns.of([[*of_one[: most - 1], self.end] for of_one in numbers]), too_long

    def text(self, numbers: Sequence[int]) -> str:
        """The text up to its end; what is no piece of the model, such as a sentinel of T5's, is unknown in it."""
        size = len(self)
        until = numbers.index(self.end) if self.end in numbers else len(numbers)
        known = [number if number < size else self.unknown for number in numbers[:until]]
        return str(self._model.decode(known)).strip()

    def as_written(self, text: str) -> str:
        """A text as a model writes it: what it is made of pieces, and again of text."""
        return self.text(self.numbers(text))
