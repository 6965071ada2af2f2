"""The tokenizer in an encoder's folder, by the `tokenizers` library.

The library aborts or exhausts memory on some files: a folder's own `tokenizer.json` is tried in a
separate process.
"""

import importlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fairseq_mtmoe.core.errors import UserError, first_line
from fairseq_mtmoe.core.isolated import Lost, isolated

Tokenizer = Any  # of `tokenizers`, which translation does not need

# Limits of a trial; a vocabulary of 250,000 pieces takes 300 MB and 2 seconds.
_MEMORY = 4 << 30
_SECONDS = 30


@contextmanager
def as_user_error(what: str) -> Iterator[None]:
    """Turn the library's errors, Rust panics included, into a `UserError`.

    what: the beginning of the sentence.
    """
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{what}: {first_line(error)[:200]}.") from error


def load_tokenizer(serialized: str) -> Tokenizer:
    """Return the tokenizer of a `tokenizer.json` (UserError: it fails)."""
    check_installed()
    import tokenizers

    with as_user_error("`tokenizer.json` cannot be read by the library `tokenizers`"):
        tokenizer = tokenizers.Tokenizer.from_str(serialized)
        tokenizer.no_padding()
        tokenizer.no_truncation()  # its rule differs from BERT's
        if not {0, 1} <= set(tokenizer.encode("a", "a").sequence_ids):
            raise UserError(
                "`tokenizer.json` splits `a` into no tokens: it is not an encoder's tokenizer."
            )
    return tokenizer


def _try(serialized: str) -> None:
    load_tokenizer(serialized)


def check_installed(package: str = "tokenizers", module: str = "tokenizers") -> None:
    """Raise `UserError` if a package that translation does not need is missing."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"`{package}` is required for language understanding; run "
            "`pip install 'fairseq_mtmoe[nlu]'`, or install the wheels in WHEELHOUSE-optional."
        ) from error


def serialized_tokenizer(files: Mapping[str, str]) -> str:
    """Return a folder's `tokenizer.json`, or build it from BERT's or RoBERTa's files.

    files: the text of the tokenizer's files by name.
    """
    check_installed()
    if "tokenizer.json" in files:
        try:
            isolated(_try, files["tokenizer.json"], memory=_MEMORY, seconds=_SECONDS)
        except Lost as error:
            raise UserError(
                f"`tokenizer.json` cannot be read by the library `tokenizers`: {error}."
            ) from error
        return files["tokenizer.json"]
    with as_user_error("The tokenizer's files cannot be read as BERT's or RoBERTa's"):
        settings = json.loads(files.get("tokenizer_config.json", "{}"))
        if "vocab.txt" in files:
            return str(_word_piece(files["vocab.txt"], settings).to_str())
        if {"vocab.json", "merges.txt"} <= set(files):
            return str(_byte_level(files["vocab.json"], files["merges.txt"], settings).to_str())
    raise UserError(
        "An encoder's folder must contain BERT's `vocab.txt`, or RoBERTa's `vocab.json` and "
        f"`merges.txt`, but contains {', '.join(files) or 'none of these'}."
    )


def _word_piece(vocabulary: str, settings: Mapping[str, Any]) -> Tokenizer:
    from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer

    return BertWordPieceTokenizer(
        {piece: number for number, piece in enumerate(vocabulary.rstrip("\n").split("\n"))},
        lowercase=bool(settings.get("do_lower_case", True)),
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", True)),
    )._tokenizer


def _byte_level(vocabulary: str, merges: str, settings: Mapping[str, Any]) -> Tokenizer:
    from tokenizers.implementations.byte_level_bpe import ByteLevelBPETokenizer
    from tokenizers.processors import RobertaProcessing

    pieces = json.loads(vocabulary)
    prefix = bool(settings.get("add_prefix_space", False))
    lines = [
        line.partition(" ")
        for line in merges.split("\n")
        if line and not line.startswith("#version")
    ]
    pairs = [(first, second) for first, _, second in lines]
    tokenizer = ByteLevelBPETokenizer(pieces, pairs, add_prefix_space=prefix)._tokenizer
    end = ("</s>", pieces["</s>"])
    start = ("<s>", pieces["<s>"])
    tokenizer.post_processor = RobertaProcessing(end, start, True, prefix)
    return tokenizer
