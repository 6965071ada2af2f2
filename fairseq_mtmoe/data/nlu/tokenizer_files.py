"""One tokenizer of the `tokenizers` library from the files of an encoder's folder, whatever their age."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fairseq_mtmoe.errors import UserError, first_line

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def check_installed() -> None:
    """Raise the `UserError` that says how to get the `tokenizers` library, which translation does without."""
    try:
        importlib.import_module("tokenizers")
    except ImportError as error:
        raise UserError(
            "`tokenizers` must be installed for language understanding, but is not: `pip install "
            "'fairseq_mtmoe[nlu]'`, or the folder WHEELHOUSE-optional."
        ) from error


def serialized_tokenizer(files: Mapping[str, str]) -> str:
    """What stands, or would stand, in the folder's `tokenizer.json`.

    Args:
        files: the texts of `tokenizer.json`; or of BERT's `vocab.txt`; or of RoBERTa's `vocab.json` and `merges.txt`;
            and of `tokenizer_config.json`, by these names.

    Raises:
        UserError: there is no tokenizer in them, or they are damaged.
    """
    check_installed()
    if "tokenizer.json" in files:
        return files["tokenizer.json"]
    try:
        settings = json.loads(files.get("tokenizer_config.json", "{}"))
        if "vocab.txt" in files:
            return _word_piece(files["vocab.txt"], settings).to_str()
        if {"vocab.json", "merges.txt"} <= set(files):
            return _byte_level(files["vocab.json"], files["merges.txt"], settings).to_str()
    except Exception as error:  # the library raises nothing more precise
        raise UserError(f"The tokenizer's files must be BERT's or RoBERTa's, but {first_line(error)}.") from error
    raise UserError(f"The tokenizer's files must be BERT's or RoBERTa's, but are {', '.join(files) or 'none'}.")


def _word_piece(vocabulary: str, settings: Mapping[str, Any]) -> Tokenizer:
    from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer

    pieces = {piece: number for number, piece in enumerate(vocabulary.rstrip("\n").split("\n"))}
    lowercase = bool(settings.get("do_lower_case", True))
    strip_accents, chinese = settings.get("strip_accents"), bool(settings.get("tokenize_chinese_chars", True))
    return BertWordPieceTokenizer(
        pieces, lowercase=lowercase, strip_accents=strip_accents, handle_chinese_chars=chinese
    )._tokenizer


def _byte_level(vocabulary: str, merges: str, settings: Mapping[str, Any]) -> Tokenizer:
    from tokenizers.implementations.byte_level_bpe import ByteLevelBPETokenizer
    from tokenizers.processors import RobertaProcessing

    pieces = json.loads(vocabulary)
    lines = [line.partition(" ") for line in merges.split("\n") if line and not line.startswith("#version")]
    pairs = [(first, second) for first, _, second in lines]
    prefix = bool(settings.get("add_prefix_space", False))
    tokenizer = ByteLevelBPETokenizer(pieces, pairs, add_prefix_space=prefix)._tokenizer
    end, start = (("</s>", pieces["</s>"]), ("<s>", pieces["<s>"]))
    tokenizer.post_processor = RobertaProcessing(end, start, True, prefix)
    return tokenizer
