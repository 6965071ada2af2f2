"""A SentencePiece model and fairseq's dictionary of its pieces.

They are trained or given. Figures of both are by language.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.core.files import read_text, regular_file, text_lines
from fairseq_mtmoe.core.sentencepieces import load_sentencepiece
from fairseq_mtmoe.corpora.binarize import SPECIAL, UNKNOWN
from fairseq_mtmoe.corpora.cleaning.languages import scripts_of
from fairseq_mtmoe.corpora.recipes.codes import CODE, Spelling
from fairseq_mtmoe.corpora.recipes.recipe import SOURCE_FILES, Recipe
from fairseq_mtmoe.corpora.recipes.schema import languages_of
from fairseq_mtmoe.translation.data.file_names import (
    SENTENCEPIECE,
    TAG,
    TOKEN_STYLE,
    dictionary_name,
    model_of_sources,
)

# Share of a model's pieces in its dictionary; with less, the dictionary is another model's.
_LEAST_SHARED = 0.5

# With fewer characters per piece on average, spaces included, a language is split into hardly more
# than letters. With 32,000 pieces for 50 languages most have 3 to 4.
LEAST_CHARACTERS = 2.0
LEAST_WIDE_CHARACTERS = 1.2  # the same for wide characters, which are words or syllables
MOST_UNKNOWN = 0.005  # share of a language's tokens that may be unknown without a warning
_WIDE_SCRIPTS = frozenset({"Hani", "Hira", "Kana", "Hang"})
# Scripts without spaces between words.
_NO_SPACES = frozenset({"Hani", "Hira", "Kana", "Thai", "Khmr", "Laoo", "Mymr"})


@dataclass(frozen=True)
class Pieces:
    """A dictionary's symbols without fairseq's own, and ids of the model's pieces.

    The id of a piece that the dictionary lacks is `UNKNOWN`.
    """

    symbols: list[str]
    ids: NDArray[np.int32]


def load(model: bytes, dictionary: Path | None = None) -> Pieces:
    """Return the pieces of a model with its `dict.txt`, or with all its pieces.

    Raises `UserError` if the files do not fit.
    """
    names = _names(model)
    symbols = [name for name in names if name not in SPECIAL]
    if dictionary is not None:
        symbols = _symbols(dictionary)
    indices: Mapping[str, int] = {
        symbol: index for index, symbol in enumerate((*SPECIAL, *symbols))
    }
    shared = len({*names} & {*symbols})
    if shared < _LEAST_SHARED * len(names):
        raise UserError(
            f"`vocabulary.dictionary` must belong to `vocabulary.model`, but `{dictionary}`"
            f" has only {shared:,} of its {len(names):,} pieces."
        )
    return Pieces(symbols, np.array([indices.get(name, UNKNOWN) for name in names], np.int32))


def with_tag(pieces: Pieces) -> Pieces:
    """Return the pieces with `TAG` as the last symbol, which text never contains."""
    if TAG in pieces.symbols:
        return pieces
    return Pieces([*pieces.symbols, TAG], pieces.ids)


def expect_tag(dictionary: Path) -> None:
    """Check that the dictionary of a given vocabulary has `TAG`.

    Raises `UserError` if it does not.
    """
    if TAG not in _symbols(dictionary):
        raise UserError(
            f"The given vocabulary lacks {TAG}, the first token of sources in corpora of the `kind`"
            " back-translated; remove their `kind` to train on them like other text."
        )


def _names(model: bytes) -> list[str]:
    """Return a model's pieces; its unknown piece is named `<unk>`."""
    try:
        processor = load_sentencepiece(model)
        names = list(map(processor.id_to_piece, range(processor.get_piece_size())))
    except RuntimeError as error:
        raise UserError(f"`vocabulary.model` is not a SentencePiece model: {error}.") from error
    if not names:
        raise UserError("`vocabulary.model` is a SentencePiece model without pieces.")
    names[processor.unk_id()] = SPECIAL[UNKNOWN]
    return names


def _symbols(path: Path) -> list[str]:
    """Return the symbols of fairseq's dictionary file.

    Each line has a symbol and a count.
    """
    symbols: dict[str, str] = dict.fromkeys(SPECIAL, "")
    for line in text_lines(path, "a dictionary of fairseq's"):
        symbol, _, count = line.rstrip().rpartition(" ")
        if not symbol or symbol in symbols or not count.lstrip("-").isdecimal():
            raise UserError(
                f"`{path}` must have a new symbol and a number on each line, and none of fairseq's"
                f" own four symbols, but has the line {line!r:.80}."
            )
        symbols[symbol] = count
    return list(symbols)[len(SPECIAL) :]


OF_GIVEN = "the given vocabulary has too few pieces or characters for it"
OF_RECIPE = (
    "a larger `size` or a higher `temperature` gives longer pieces, a higher `character_coverage`"
    " (`folder`: `--vocab-size`, `--character-coverage`) fewer unknown ones"
)


def table(counts: Mapping[str, Mapping[str, int]], advice: str) -> dict[str, dict[str, Any]]:
    """Return a report's row per language: lengths, `unknown_share` and a `warning`.

    `counts` has `words`, `tokens`, `unknown` and `characters`. Warnings end in `advice`.
    """
    rows = {}
    for lang, sums in counts.items():
        length = _share(sums["characters"], sums["tokens"])
        unknown = _share(sums["unknown"], sums["tokens"])
        warnings = list(_warnings(lang, length, unknown))
        pieces_per_word = None
        if not _NO_SPACES & {*scripts_of(lang)}:
            pieces_per_word = _share(sums["tokens"], sums["words"])
        rows[lang] = {
            "pieces_per_word": pieces_per_word,
            "characters_per_piece": length,
            "unknown_share": unknown,
            "warning": "; ".join([*warnings, advice]) if warnings else None,
        }
    return rows


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


def _warnings(lang: str, length: float | None, unknown: float | None) -> Iterator[str]:
    least = LEAST_WIDE_CHARACTERS if _WIDE_SCRIPTS & {*scripts_of(lang)} else LEAST_CHARACTERS
    if length is not None and length < least:
        yield f"pieces have {length:.2f} characters on average, below {least:g}"
    if unknown is not None and unknown > MOST_UNKNOWN:
        yield f"{unknown:.2%} of the tokens are unknown, above {MOST_UNKNOWN:.1%}"


LANGS = "langs.txt"


@dataclass(frozen=True)
class GivenVocabulary:
    """Vocabulary of another data directory or a translator.

    It consists of `model`, `dictionary`, languages and the spelling of tokens.

    With a `translator`, `codes` are the user's choices among its languages for the text's
    languages, and `num_experts` is 0 if it is dense.
    """

    files: dict[str, Path]
    langs: tuple[str, ...]
    language_tokens: Spelling
    translator: Path | None = None
    codes: Mapping[str, str] = field(default_factory=dict)
    num_experts: int = 0

    def of_recipe(self, recipe: Recipe) -> Recipe:
        """Return the recipe with this vocabulary.

        Raises `UserError` like `codes_for`, or if a language is on both of two sides.
        """
        recipe = replace(recipe, codes=self.codes_for(languages_of(recipe.corpora)))
        sources = {name: str(self.files[name]) for name in SOURCE_FILES if name in self.files}
        both: set[str] = set()
        if sources:
            targets = {direction.split("-")[1] for direction in recipe.trained()}
            both = recipe.source_languages() & targets
        if both:
            raise UserError(
                f"`{self.translator}` has different vocabularies for sources and targets,"
                f" but {min(both)} is both a source and a target;"
                " make a data directory for each direction."
            )
        vocabulary = replace(
            recipe.vocabulary,
            size=None,
            model=str(self.files["model"]),
            dictionary=str(self.files["dictionary"]),
            language_tokens=self.language_tokens,
        )
        return replace(
            recipe, of_sources=sources, vocabulary=vocabulary, known_languages=self.langs
        )

    def codes_for(self, langs: Iterable[str]) -> dict[str, str]:
        """Return the translator's codes for the text's languages; empty without one.

        Raises `UserError` if the translator lacks a language.
        """
        if self.translator is None:
            return {}
        from fairseq_mtmoe.corpora.vocabulary.codes import codes_of_model  # imports large tables

        return codes_of_model(langs, self.langs, self.codes)

    def how_to_go_on(self, data: Path) -> str:
        """Return a sentence on training a model further.

        The training uses a data directory of this vocabulary.
        """
        if self.num_experts:
            return (
                f"To continue training {self.translator}: the options of its training, with"
                f" --num-experts {self.num_experts} --finetune-from-model {self.translator}"
                f" --lang-dict {data / LANGS} --lang-pairs {data / 'lang_pairs.txt'}."
                " It trains all weights, and the model loses in its other languages."
            )
        if self.translator is not None:
            return (
                f"Its languages and token formats are those of {self.translator},"
                " as `--init-model` sets them."
            )
        how = f"--finetune-from-model CHECKPOINT --lang-dict {data / LANGS}"
        sentences = f"To continue training a model with this vocabulary: {how}."
        if new := [lang for lang in languages_in(data) if lang not in self.langs]:
            sentences += (
                f" First add by `mtmoe add-task CHECKPOINT OUT --task {new[0]}`, in this order:"
                f" {', '.join(new)}."
            )
        return sentences


def vocabulary_of_data(folder: Path) -> GivenVocabulary:
    """Return a data directory's vocabulary.

    Raises `UserError` if the folder is none of `mtmoe prepare`, or has one vocabulary for each
    side.
    """
    if not folder.is_dir():
        raise_invalid("--vocabulary-from", "a data directory of `mtmoe prepare`", str(folder))
    model = regular_file(
        folder / SENTENCEPIECE, "the SentencePiece model of a data directory of `mtmoe prepare`"
    )
    if model_of_sources(folder) != model:
        raise_invalid(
            "--vocabulary-from",
            "a data directory with one vocabulary for sources and targets"
            " (give this one's model as `--vocabulary-of MODEL`)",
            str(folder),
        )
    dictionaries = sorted(folder.rglob(dictionary_name("*")))
    if not dictionaries:
        raise UserError(f"`{folder}` contains no dictionary such as {dictionary_name('en')}.")
    spelling = Spelling.plain
    if (folder / TOKEN_STYLE).exists():
        spelling = Spelling.mbart
    files = {"model": model.absolute(), "dictionary": dictionaries[0].absolute()}
    return GivenVocabulary(files, languages_in(folder), spelling)


def languages_in(folder: Path) -> tuple[str, ...]:
    """Return a data directory's languages in order (UserError: their list is invalid)."""
    path = folder / LANGS
    langs = read_text(path, "the list of a data directory's languages").split()
    for lang in langs:
        if not CODE.fullmatch(lang):
            raise_invalid(f"a line of {path}", "the code of a language, such as en", lang)
    return tuple(langs)
