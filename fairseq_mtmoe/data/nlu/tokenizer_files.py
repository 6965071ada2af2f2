"""The tokenizer of an encoder's folder, by the `tokenizers` library.

The library panics, aborts or fills the memory at some files: one of other parts than BERT's and RoBERTa's is tried in a
process of its own first.
"""

import importlib
import json
import string
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fairseq_mtmoe.errors import UserError, first_line
from fairseq_mtmoe.io.isolated import Lost, isolated

Tokenizer = Any  # the library's: translation does without it

# Parts that hold no pattern, table or text that could make them crash, or a text grow.
SIMPLE = {
    *("BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "Sequence"),
    *("BertPreTokenizer", "ByteLevel", "Whitespace", "WhitespaceSplit", "Metaspace", "Punctuation", "Digits"),
    *("WordPiece", "BPE", "WordLevel"),
}
GROWTH = 32  # a normalizer makes a text at most so many times as long; Unicode's own forms reach 18
_TRIAL = string.printable + "é ß 漢字 и ﷺ 😀"
_MOST_CHARACTERS = 256  # of a tokenizer's patterns that are tried
_MEMORY, _SECONDS = 4 << 30, 30  # of a trial; a vocabulary of 250,000 pieces takes 300 MB and 2 seconds


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """Inside, what the library raises, be it a panic of Rust's, is the `UserError` that `what` must be another."""
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{what}, but {first_line(error)[:200]}.") from error


def load_tokenizer(serialized: str) -> Tokenizer:
    """Return the tokenizer of a `tokenizer.json` (UserError: it crashes, or makes no or too many tokens of a text)."""
    check_installed()
    is_simple = _is_simple(serialized)
    try:
        if not is_simple:
            isolated(_expect_no_fault, serialized, memory=_MEMORY, seconds=_SECONDS)
    except Lost as error:
        raise UserError(f"`tokenizer.json` must be one of `tokenizers`, but {error}.") from error
    return _try(serialized, is_simple)


def _expect_no_fault(serialized: str) -> None:
    _try(serialized, is_simple=False)


def _try(serialized: str, is_simple: bool) -> Tokenizer:
    import tokenizers

    with guarded("`tokenizer.json` must be one of `tokenizers`"):
        tokenizer = tokenizers.Tokenizer.from_str(serialized)
        tokenizer.no_padding()
        tokenizer.no_truncation()  # whose rule is not quite BERT's
        for text in (_TRIAL, *(() if is_simple else _repeated_patterns(serialized))):
            normal = text if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(text)
            if len(normal) > GROWTH * len(text):
                found = f"makes {len(normal)} characters of {len(text)}"
                raise UserError(f"`tokenizer.json` must not make a text over {GROWTH} times as long, but {found}.")
            tokenizer.encode(text)
        if not {0, 1} <= set(tokenizer.encode("a", "a").sequence_ids):
            raise UserError("`tokenizer.json` must make tokens of any text, but makes none of `a`.")
    return tokenizer


def _is_simple(serialized: str) -> bool:
    """Whether all parts are of known kinds; what is no JSON the library refuses in a sentence."""
    try:
        content = json.loads(serialized)
        return {of for part in ("normalizer", "pre_tokenizer", "model") for of in _kinds(content.get(part))} <= SIMPLE
    except (ValueError, AttributeError, TypeError, RecursionError):
        return False


def _kinds(part: Any) -> Iterator[str]:
    if part is not None:
        yield part.get("type", "BPE")
        for inner in (*part.get("normalizers", ()), *part.get("pretokenizers", ())):
            yield from _kinds(inner)


def _repeated_patterns(serialized: str) -> list[str]:
    """Each of the characters that normalizers and pre-tokenizers look for, alone or in a pattern, many times."""
    content = json.loads(serialized)
    looked_for = json.dumps([content.get("normalizer"), content.get("pre_tokenizer")], ensure_ascii=False)
    return [character * 256 for character in sorted(set(looked_for[: 1 << 20]))[:_MOST_CHARACTERS]]


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
    """What stands, or would stand, in a folder's `tokenizer.json`, made of BERT's or RoBERTa's vocabulary."""
    check_installed()
    if "tokenizer.json" in files:
        return files["tokenizer.json"]
    with guarded("The tokenizer's files must be BERT's or RoBERTa's"):
        settings = json.loads(files.get("tokenizer_config.json", "{}"))
        if "vocab.txt" in files:
            return str(_word_piece(files["vocab.txt"], settings).to_str())
        if {"vocab.json", "merges.txt"} <= set(files):
            return str(_byte_level(files["vocab.json"], files["merges.txt"], settings).to_str())
    raise UserError(f"The tokenizer's files must be BERT's or RoBERTa's, but are {', '.join(files) or 'none'}.")


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

    pieces, prefix = json.loads(vocabulary), bool(settings.get("add_prefix_space", False))
    lines = [line.partition(" ") for line in merges.split("\n") if line and not line.startswith("#version")]
    pairs = [(first, second) for first, _, second in lines]
    tokenizer = ByteLevelBPETokenizer(pieces, pairs, add_prefix_space=prefix)._tokenizer
    end, start = (("</s>", pieces["</s>"]), ("<s>", pieces["<s>"]))
    tokenizer.post_processor = RobertaProcessing(end, start, True, prefix)
    return tokenizer
