"""What fairseq reads on the way of every task: dictionaries, SentencePiece models, lines to translate.

Read by these, what is wrong with a file is a sentence that says where. What fairseq makes of a file that is as it
should be stays the same.
"""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from fairseq.data import Dictionary
from fairseq.file_io import PathManager
from omegaconf import DictConfig, OmegaConf

from fairseq_mtmoe.errors import UserError, must_be
from fairseq_mtmoe.io.files import read_text, regular_file


def load_dictionary(path: str) -> Dictionary:
    """A dictionary, as by fairseq's `Dictionary.load`.

    Raises:
        UserError: the file is none; the sentence names the line that is wrong.
    """
    text = read_text(PathManager.get_local_path(path), "a dictionary")
    dictionary = Dictionary()
    before = len(dictionary)
    try:
        dictionary.add_from_file(io.StringIO(text, newline=None))  # line ends as in a file that Python opens
    except (ValueError, RuntimeError):  # another form; a symbol for the second time
        number = len(dictionary) - before + 1
        line = io.StringIO(text, newline=None).getvalue().split("\n")[number - 1]
        must_be(f"line {number} of {path}", "a symbol that no line before it has, a space and a count", line)
    if len(dictionary) == before:
        raise UserError(f"`{path}` must be a dictionary with a symbol and its count on each line, but is empty.")
    return dictionary


@contextmanager
def naming_the_model(cfg: Any) -> Iterator[None]:
    """Around fairseq's `build_bpe(cfg)`: what is wrong with a SentencePiece model is a sentence.

    Raises:
        UserError: that sentence.
    """
    if "sentencepiece" not in (getattr(cfg, "_name", None), getattr(cfg, "bpe", None)):
        yield
        return
    missing = isinstance(cfg, DictConfig) and OmegaConf.is_missing(cfg, "sentencepiece_model")
    path = None if missing else cfg.sentencepiece_model
    if not path:
        must_be("--sentencepiece-model", "a file, with `--bpe sentencepiece`", path)
    if "://" not in path:  # fairseq fetches those
        regular_file(path, "a SentencePiece model")
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise UserError(f"`{path}` must be a SentencePiece model, but is damaged or another file.") from error


def read_lines(input: str, buffer_size: int) -> Iterator[list[str]]:
    """The lines of a file, or of the standard input for `-`, without white space around them, so many at a time.

    Takes the place of `fairseq_cli.interactive.buffered_read`. A line feed ends a line, and nothing else does.

    Raises:
        UserError: there is no such file, or a line is not UTF-8.
    """
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
        place = f"Line {number} of {name}"
        raise UserError(f"{place} must be UTF-8 text, but is not at byte {error.start}; convert it.") from error
    except OSError as error:
        raise UserError(f"`--input` must be text to translate, but {name} cannot be read: {error.strerror}.") from error
