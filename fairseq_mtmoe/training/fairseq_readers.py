"""Wrappers of fairseq's readers, with clear errors.

They read dictionaries, SentencePiece models and lines.
"""

import functools
import io
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

from fairseq.data import Dictionary
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE, SentencepieceConfig
from fairseq.file_io import PathManager
from omegaconf import DictConfig, OmegaConf

from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.core.files import decoded_line, read_text, regular_file

PIECE = "\u2581"  # begins SentencePiece's first piece of each word


def with_sentences(
    original: Callable[[Dictionary, Any], None],
) -> Callable[[Dictionary, Any], None]:
    """Wrap `Dictionary.add_from_file` so that its errors name the line."""

    @functools.wraps(original)
    def add_from_file(dictionary: Dictionary, file: Any) -> None:
        if not isinstance(file, str):
            return original(dictionary, file)
        path = PathManager.get_local_path(file)
        # `newline=None` means universal newlines, as `open` has.
        text = io.StringIO(read_text(path, "a dictionary"), newline=None)
        before = len(dictionary)
        try:
            original(dictionary, text)
        except (ValueError, RuntimeError):  # another format; a duplicate symbol
            number = len(dictionary) - before + 1
            line = text.getvalue().split("\n")[number - 1]
            raise_invalid(f"line {number} of {path}", "a new symbol, a space and a count", line)
        if len(dictionary) == before:
            raise UserError(
                f"`{path}` must be a dictionary with a symbol and its count on each line, but is "
                "empty."
            )

    return add_from_file


def checking_the_model(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Wrap `SentencepieceBPE.__init__` so that its errors name the model's file."""

    @functools.wraps(original)
    def __init__(encoder: Any, cfg: Any) -> None:
        missing = isinstance(cfg, DictConfig) and OmegaConf.is_missing(cfg, "sentencepiece_model")
        path = None if missing else cfg.sentencepiece_model
        if not path:
            raise_invalid("--sentencepiece-model", "a file with `--bpe sentencepiece`", path)
        if "://" not in path:  # fairseq downloads URLs
            regular_file(path, "a SentencePiece model")
        try:
            original(encoder, cfg)
        except (RuntimeError, OSError) as error:
            raise UserError(
                f"`{path}` must be a SentencePiece model, but is damaged or another file."
            ) from error

    return __init__


class PiecesOfLines(SentencepieceBPE):
    """Splits lines into pieces by the model at `path`; joins translations' pieces.

    Lines that are already in pieces stay.
    """

    def __init__(self, path: str) -> None:
        super().__init__(SentencepieceConfig(sentencepiece_model=path))
        self._cuts = False

    def encode(self, x: str) -> str:
        """Return a line in pieces; lines with pieces stay as they are."""
        if not x or PIECE in x:
            return x
        self._cuts = True
        pieces: str = super().encode(x)
        return pieces

    def decode(self, x: str) -> str:
        """Return a translation as text if the input was split here."""
        text: str = super().decode(x) if self._cuts and PIECE in x else x
        return text


def read_lines(input: str, buffer_size: int) -> Iterator[list[str]]:
    """Yield groups of stripped lines of a file, or of standard input for `-`.

    Only line feeds end lines.
    """
    lines = _decoded(input)
    while group := list(itertools.islice(lines, buffer_size)):
        yield group


def _decoded(input: str) -> Iterator[str]:
    name = "the standard input" if input == "-" else f"`{input}`"
    if input == "-" and sys.stdin is None:
        raise UserError("`--input` is required where the standard input is closed.")
    try:
        with nullcontext(sys.stdin.buffer) if input == "-" else open(input, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                yield decoded_line(line, number, name).strip()
    except OSError as error:
        raise UserError(
            f"`--input` must be text to translate, but {name} cannot be read: {error.strerror}."
        ) from error
