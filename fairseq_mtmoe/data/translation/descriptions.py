"""What a language pair is, in a sentence: what PEMT's prompts for translation begin as.

The package says what languages are in `languages.yaml`; whoever translates others says it in words of their own.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
import yaml

from fairseq_mtmoe.data.translation.file_names import SENTENCEPIECE
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.io.files import read_bytes

LANGUAGES = Path(__file__).with_name("languages.yaml")


@cache
def languages() -> dict[str, str]:
    """By their codes, what is known of languages: `Czech, a West Slavic language close to Slovak, …`."""
    return {code: ", ".join(parts) for code, parts in yaml.safe_load(LANGUAGES.read_text("utf-8")).items()}


def description_of_pair(pair: str) -> str:
    """The sentence of a pair such as `en-cs`."""
    known, found = languages(), []
    for lang in pair.split("-"):
        name = known.get(lang) or known.get(lang.split("_")[0])
        if name is None:
            raise UserError(
                f"`--description` must say in a sentence what {pair} is, for nothing is known of the language {lang}."
            )
        found.append(name)
    return "Given a sentence in {}, translate it into {}.".format(*found)


def description_tokens(text: str, dictionary: Any, folder: str) -> list[int]:
    """The tokens of a description, by the data's own SentencePiece; where there is none, of its words as they are."""
    path = Path(folder) / SENTENCEPIECE
    pieces = _pieces(text, path) if path.exists() else text.split()
    tokens = [dictionary.index(piece) for piece in pieces]
    if all(token == dictionary.unk() for token in tokens):
        raise_invalid("--description", f"a sentence with words of the dictionary in {folder}", text)
    return tokens


def _pieces(text: str, path: Path) -> list[str]:
    content = read_bytes(path, "the SentencePiece model of a data directory")
    try:
        pieces: list[str] = sentencepiece.SentencePieceProcessor(model_proto=content).encode(text, out_type=str)
    except RuntimeError as error:
        raise UserError(f"`{path}` must be a model of SentencePiece, but is not one that can be read.") from error
    return pieces
