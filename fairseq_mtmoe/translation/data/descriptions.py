"""Descriptions of language pairs, from `languages.yaml`.

They are the initial values of PEMT's prompts for translation.
"""

from typing import Any

import sentencepiece

from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.core.files import read_bytes
from fairseq_mtmoe.translation.data.file_names import model_of_sources
from fairseq_mtmoe.translation.data.languages import languages


def described_languages() -> dict[str, str]:
    """Return the descriptions of languages by code.

    One is `Czech, a West Slavic language close to Slovak, …`.
    """
    descriptions = {}
    for code, row in languages().items():
        if "about" in row:
            descriptions[code] = f"{row['name']}, {row['about']}"
    return descriptions


def description_of_pair(pair: str) -> str:
    """Return a sentence that describes a language pair (UserError: unknown language)."""
    descriptions = described_languages()
    names = []
    for lang in pair.split("-"):
        code = lang.split("_")[0]
        name = descriptions.get(lang) or descriptions.get(code) or descriptions.get(_short(code))
        if name is None:
            raise UserError(
                f"`--description` must describe {pair} in a sentence, as the language {lang} is "
                "not known here."
            )
        names.append(name)
    return "Given a sentence in {}, translate it into {}.".format(*names)


def _short(code: str) -> str:
    """Return the code that BCP 47 prefers: `sw` for `swh`."""
    import langcodes  # large tables that are rarely needed

    try:
        return str(langcodes.standardize_tag(code, macro=True))
    except ValueError:  # raised by `langcodes` for an invalid code
        return code


def description_tokens(text: str, dictionary: Any, folder: str) -> list[int]:
    """Return a description's tokens by the data's SentencePiece model.

    Without a model, its words are the tokens.
    """
    path = model_of_sources(folder)
    pieces = text.split()
    if path.exists():
        content = read_bytes(path, "the SentencePiece model of a data directory")
        try:
            processor = sentencepiece.SentencePieceProcessor(model_proto=content)
            pieces = processor.encode(text, out_type=str)
        except RuntimeError as error:
            raise UserError(
                f"`{path}` must be a SentencePiece model, but cannot be read as one."
            ) from error
    tokens = list(map(dictionary.index, pieces))
    if set(tokens) <= {dictionary.unk()}:
        raise_invalid("--description", f"a sentence with words of the dictionary in {folder}", text)
    return tokens
