"""What fairseq reads itself: dictionaries, SentencePiece models, lines; here with a sentence for what is wrong."""

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

from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.io.files import read_text, regular_file

PIECE = "\u2581"  # begins SentencePiece's first piece of each word


def with_sentences(original: Callable[[Dictionary, Any], None]) -> Callable[[Dictionary, Any], None]:
    """fairseq's `Dictionary.add_from_file`, which names the line that is wrong."""

    @functools.wraps(original)
    def add_from_file(dictionary: Dictionary, file: Any) -> None:
        if not isinstance(file, str):
            return original(dictionary, file)
        path = PathManager.get_local_path(file)
        text = io.StringIO(read_text(path, "a dictionary"), newline=None)  # line ends as in a file that Python opens
        before = len(dictionary)
        try:
            original(dictionary, text)
        except (ValueError, RuntimeError):  # another form; a symbol for the second time
            number = len(dictionary) - before + 1
            line = text.getvalue().split("\n")[number - 1]
            raise_invalid(f"line {number} of {path}", "a symbol that no line before it has, a space and a count", line)
        if len(dictionary) == before:
            raise UserError(f"`{path}` must be a dictionary with a symbol and its count on each line, but is empty.")

    return add_from_file


def checking_the_model(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """fairseq's `SentencepieceBPE.__init__`, which names the model that is none."""

    @functools.wraps(original)
    def __init__(encoder: Any, cfg: Any) -> None:
        missing = isinstance(cfg, DictConfig) and OmegaConf.is_missing(cfg, "sentencepiece_model")
        path = None if missing else cfg.sentencepiece_model
        if not path:
            raise_invalid("--sentencepiece-model", "a file, with `--bpe sentencepiece`", path)
        if "://" not in path:  # fairseq fetches those
            regular_file(path, "a SentencePiece model")
        try:
            original(encoder, cfg)
        except (RuntimeError, OSError) as error:
            raise UserError(f"`{path}` must be a SentencePiece model, but is damaged or another file.") from error

    return __init__


class PiecesOfLines(SentencepieceBPE):  # type: ignore[misc]
    """Cuts lines that are not in pieces yet, by the model of a `path`, and joins the pieces of translations then."""

    def __init__(self, path: str) -> None:
        super().__init__(SentencepieceConfig(sentencepiece_model=path))
        self._cuts = False

    def encode(self, x: str) -> str:
        if not x or PIECE in x:
            return x
        self._cuts = True
        pieces: str = super().encode(x)
        return pieces

    def decode(self, x: str) -> str:
        text: str = super().decode(x) if self._cuts and PIECE in x else x
        return text


def read_lines(input: str, buffer_size: int) -> Iterator[list[str]]:
    """The stripped lines of a file, or of the standard input for `-`, in groups; a line feed alone ends a line."""
    lines = _decoded(input)
    while group := list(itertools.islice(lines, buffer_size)):
        yield group


def _decoded(input: str) -> Iterator[str]:
    name, number = "the standard input" if input == "-" else f"`{input}`", 0
    try:
        with nullcontext(sys.stdin.buffer) if input == "-" else open(input, "rb") as lines:
            for number, line in enumerate(lines, start=1):  # noqa: B007 (the sentence below says which)
                yield line.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        where = f"Line {number} of {name}"
        raise UserError(f"{where} must be UTF-8 text, but is not at byte {error.start}; convert it.") from error
    except OSError as error:
        raise UserError(f"`--input` must be text to translate, but {name} cannot be read: {error.strerror}.") from error
