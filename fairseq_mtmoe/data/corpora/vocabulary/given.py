"""The vocabulary of an earlier data directory, so that a model which was trained on it can go on with other text."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from fairseq_mtmoe.data.corpora.recipes import Recipe, Spelling
from fairseq_mtmoe.data.corpora.recipes.schema import CODE
from fairseq_mtmoe.data.translation.file_names import SENTENCEPIECE, TOKEN_STYLE, dictionary_name
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.io.files import read_text, regular_file

LANGS = "langs.txt"
OF_TRAINED = ("vocab_size", "character_coverage", "temperature")
"""Options of a vocabulary that is trained: a given one leaves them without a meaning."""


@dataclass(frozen=True)
class GivenVocabulary:
    """What another data directory has.

    Attributes:
        files: its SentencePiece `model` and fairseq's `dictionary`, by absolute paths.
        langs: its languages, in the order of a model's language tokens.
        language_tokens: how training writes these tokens.
    """

    files: dict[str, Path]
    langs: tuple[str, ...]
    language_tokens: Spelling

    def of_recipe(self, recipe: Recipe) -> Recipe:
        """The recipe with this vocabulary in the place of its own."""
        model, dictionary, tokens = str(self.files["model"]), str(self.files["dictionary"]), self.language_tokens
        given = replace(recipe.vocabulary, size=None, model=model, dictionary=dictionary, language_tokens=tokens)
        return replace(recipe, vocabulary=given, known_languages=self.langs)

    def how_to_go_on(self, data: Path) -> str:
        """How a model of these languages goes on with a data directory that was made with this vocabulary."""
        new = [lang for lang in languages_in(data) if lang not in self.langs]
        sentence = (
            f"To train a model with this vocabulary on: --finetune-from-model CHECKPOINT --lang-dict {data / LANGS}."
        )
        if not new:
            return sentence
        others = " and so on in this order" if len(new) > 1 else ""
        return f"{sentence} It must know {', '.join(new)}: `mtmoe add-task CHECKPOINT OUT --task {new[0]}`{others}."


def vocabulary_of(folder: Path) -> GivenVocabulary:
    """The vocabulary of a data directory that `mtmoe prepare` made.

    Raises:
        UserError: the folder is none, or lacks one of the files.
    """
    if not folder.is_dir():
        raise_invalid("--vocabulary-from", "a data directory of `mtmoe prepare`", str(folder))
    model = regular_file(folder / SENTENCEPIECE, "the SentencePiece model of a data directory of `mtmoe prepare`")
    places = (folder, folder / "shard0")
    dictionary = next((path for place in places for path in sorted(place.glob(dictionary_name("*")))), None)
    if dictionary is None:
        raise UserError(f"`{folder}` must have a dictionary such as {dictionary_name('en')}, but has none.")
    style = folder / TOKEN_STYLE
    is_mbart = style.exists() and read_text(style).strip() == Spelling.mbart.name
    files = {"model": Path(os.path.abspath(model)), "dictionary": Path(os.path.abspath(dictionary))}
    return GivenVocabulary(files, languages_in(folder), Spelling.mbart if is_mbart else Spelling.plain)


def languages_in(folder: Path) -> tuple[str, ...]:
    """The languages of a data directory in their order; a `UserError` where its list lacks or has something else."""
    path = folder / LANGS
    langs = read_text(path, "the list of a data directory's languages").split()
    for lang in langs:
        if not CODE.fullmatch(lang):
            raise_invalid(f"a line of {path}", "the code of a language, such as en", lang)
    return tuple(langs)
