"""What a language pair is, in a sentence, by `languages.yaml`: what PEMT's prompts for translation begin as."""

from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
import yaml

from fairseq_mtmoe.data.translation.file_names import model_of_sources
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.io.files import read_bytes

LANGUAGES = Path(__file__).with_name("languages.yaml")


@cache
def languages() -> dict[str, str]:
    """What is known of languages, by code: `Czech, a West Slavic language close to Slovak, …`."""
    return {code: ", ".join(parts) for code, parts in yaml.safe_load(LANGUAGES.read_text("utf-8")).items()}


def description_of_pair(pair: str) -> str:
    known, found = languages(), []
    for lang in pair.split("-"):
        name = known.get(lang) or known.get(lang.split("_")[0]) or known.get(_short_code(lang))
        if name is None:
            raise UserError(
                f"`--description` must say in a sentence what {pair} is, for nothing is known of the language {lang}."
            )
        found.append(name)
    return "Given a sentence in {}, translate it into {}.".format(*found)


def _short_code(lang: str) -> str:
    """The code that BCP 47 prefers: `sw` for the `swh_Latn` of pretrained models."""
    import langcodes  # with tables that nothing else needs

    try:
        return str(langcodes.standardize_tag(lang.split("_")[0], macro=True))
    except ValueError:  # of `langcodes`, for what is no code
        return lang


def description_tokens(text: str, dictionary: Any, folder: str) -> list[int]:
    """The tokens of a description, by the data's own SentencePiece; where there is none, of its words as they are."""
    path, pieces = model_of_sources(folder), text.split()
    if path.exists():
        content = read_bytes(path, "the SentencePiece model of a data directory")
        try:
            pieces = sentencepiece.SentencePieceProcessor(model_proto=content).encode(text, out_type=str)
        except RuntimeError as error:
            raise UserError(f"`{path}` must be a model of SentencePiece, but is not one that can be read.") from error
    tokens = [dictionary.index(piece) for piece in pieces]
    if all(token == dictionary.unk() for token in tokens):
        raise_invalid("--description", f"a sentence with words of the dictionary in {folder}", text)
    return tokens
