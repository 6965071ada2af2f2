"""A SentencePiece model and fairseq's dictionary of its pieces, trained or given, and what they make of languages."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from fairseq_mtmoe.data.corpora.binarize import SPECIAL, TAG, UNKNOWN
from fairseq_mtmoe.data.corpora.cleaning import characters
from fairseq_mtmoe.data.corpora.cleaning.languages import scripts_of
from fairseq_mtmoe.data.corpora.recipes.recipe import SOURCE_FILES, Recipe
from fairseq_mtmoe.data.corpora.recipes.schema import CODE, Spelling
from fairseq_mtmoe.data.translation.file_names import SENTENCEPIECE, TOKEN_STYLE, dictionary_name
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.io.files import read_text, regular_file, text_lines

_SPACE = "\u2581"
_LEAST_SHARED = 0.5  # share of a model's pieces that its dictionary must have: others were made of another model

# A language is cut into too many pieces if these have fewer characters on average, spaces included: hardly more than
# its letters. In 32,000 pieces of 50 languages most have 3 to 4.
LEAST_CHARACTERS = 2.0
LEAST_WIDE_CHARACTERS = 1.2  # the same of languages in wide characters, which are words or syllables
MOST_UNKNOWN = 0.005  # share of a language's tokens that may be unknown without a warning
_WIDE_SCRIPTS = frozenset({"Hani", "Hira", "Kana", "Hang"})
_NO_SPACES = frozenset({"Hani", "Hira", "Kana", "Thai", "Khmr", "Laoo", "Mymr"})  # between words, that is
_CHARACTERS, _COVERED = "characters ", "covered "
_OTHER = "other"  # instead of a script: what is no letter or mark, or belongs to several scripts


@dataclass(frozen=True)
class Pieces:
    """A dictionary's symbols without fairseq's own, and for each piece of the model its id in it, or `UNKNOWN`."""

    symbols: list[str]
    ids: NDArray[np.int32]


def load(model: bytes, dictionary: Path | None = None) -> Pieces:
    """Return the pieces of a serialized model and its `dict.txt`, else one made of it; `UserError` if unfit."""
    names = _names(model)
    symbols = [name for name in names if name not in SPECIAL] if dictionary is None else _symbols(dictionary)
    indices: Mapping[str, int] = {symbol: index for index, symbol in enumerate((*SPECIAL, *symbols))}
    shared = [name for name in names if name in indices and name not in SPECIAL]
    if len(shared) < _LEAST_SHARED * len(names):
        raise UserError(
            f"`vocabulary.dictionary` must belong to `vocabulary.model`, but `{dictionary}` has only {len(shared):,}"
            f" of its {len(names):,} pieces."
        )
    return Pieces(symbols, np.array([indices.get(name, UNKNOWN) for name in names], np.int32))


def with_tag(pieces: Pieces) -> Pieces:
    """The pieces with `TAG` as the last symbol, which no text is cut into."""
    return pieces if TAG in pieces.symbols else Pieces([*pieces.symbols, TAG], pieces.ids)


def expect_tag(dictionary: Path) -> None:
    """Raise a `UserError` if the dictionary of a given vocabulary has no `TAG`."""
    if TAG not in _symbols(dictionary):
        raise UserError(
            f"The given vocabulary must have {TAG}, which begins the sources of corpora whose `kind` is"
            " back-translated, but lacks it; without their `kind` they are trained on like other text."
        )


def _names(model: bytes) -> list[str]:
    """The pieces of a model; the one for what it does not know is `<unk>` whatever it calls it."""
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.load_from_serialized_proto(model)
        names = [processor.id_to_piece(piece) for piece in range(processor.get_piece_size())]
    except RuntimeError as error:
        raise UserError(f"`vocabulary.model` must be a SentencePiece model, but is none: {error}.") from error
    if not names:
        raise UserError("`vocabulary.model` must be a SentencePiece model, but has no pieces.")
    names[processor.unk_id()] = SPECIAL[UNKNOWN]
    return names


def _symbols(path: Path) -> list[str]:
    """The symbols of fairseq's dictionary file: a line for each, with how often it occurs."""
    symbols: dict[str, int] = {}
    for number, line in enumerate(text_lines(path, "a dictionary of fairseq's"), 1):
        entry = line.rstrip()
        symbol, _, count = entry.removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not symbol or not count.lstrip("-").isdecimal():
            rule = f"have a symbol and a number in each line, but line {number} is {line!r:.80}"
        elif symbol in SPECIAL and not entry.endswith("#fairseq:overwrite"):
            rule = f"not have {symbol} (line {number}): fairseq puts it first by itself"
        elif symbol in symbols:
            rule = f"have each symbol once, but lines {symbols[symbol]} and {number} are the same"
        else:
            symbols[symbol] = number
            continue
        raise UserError(f"`{path}` must {rule}.")
    return list(symbols)


def known_characters(model: sentencepiece.SentencePieceProcessor, ids: NDArray[np.int32]) -> NDArray[np.bool_]:
    """For every code point, whether it is a piece that the dictionary has (`ids`), by itself or after a space."""
    pieces = [model.id_to_piece(piece).removeprefix(_SPACE) for piece in np.flatnonzero(ids > UNKNOWN).tolist()]
    return characters.table({ord(piece) for piece in pieces if len(piece) == 1} | {ord(" ")})


def count_characters(lines: Sequence[str], known: NDArray[np.bool_]) -> dict[str, int]:
    """Count the characters of normalised text by script, `characters Latn`, and those known, `covered Latn`."""
    numbers, of_letters = characters.scripts()
    codes = characters.Columns.of(lines).codes
    codes = codes[codes != ord(" ")]
    script = of_letters[codes]
    counts: dict[str, int] = {}
    for name, which in ((_CHARACTERS, script), (_COVERED, script[known[codes]])):
        times = np.bincount(which, minlength=len(numbers) + 1).tolist()
        counts |= {f"{name}{code}": times[at] for code, at in {_OTHER: 0, **numbers}.items() if times[at]}
    return counts


def table(counts: Mapping[str, Mapping[str, int]], is_given: bool = False) -> dict[str, dict[str, Any]]:
    """Return a report's row for each language: lengths, `unknown_share`, `coverage`, also of `scripts`, a `warning`.

    `counts` are `words`, `tokens`, `unknown`, `characters` and `count_characters`; no setting changes what `is_given`.
    """
    rows = {}
    for lang, of in counts.items():
        by_script = {name.removeprefix(_CHARACTERS): of[name] for name in sorted(of) if name.startswith(_CHARACTERS)}
        covered = {script: of.get(f"{_COVERED}{script}", 0) for script in by_script}
        length, unknown = _share(of["characters"], of["tokens"]), _share(of["unknown"], of["tokens"])
        rows[lang] = {
            "pieces_per_word": None if _NO_SPACES & {*scripts_of(lang)} else _share(of["tokens"], of["words"]),
            "characters_per_piece": length,
            "unknown_share": unknown,
            "coverage": _share(sum(covered.values()), sum(by_script.values())),
            "scripts": {script: _share(covered[script], number) for script, number in by_script.items()},
            "warning": "; ".join(_warnings(lang, length, unknown, is_given)) or None,
        }
    return rows


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


def _warnings(lang: str, length: float | None, unknown: float | None, is_given: bool) -> Iterator[str]:
    least = LEAST_WIDE_CHARACTERS if _WIDE_SCRIPTS & {*scripts_of(lang)} else LEAST_CHARACTERS
    if length is not None and length < least:
        longer = "a larger `size` or a higher `temperature` gives it longer ones"
        why = "the given vocabulary has few for it" if is_given else longer
        yield f"a piece has {length:.2f} characters on average, which is under {least:g}: {why}"
    if unknown is not None and unknown > MOST_UNKNOWN:
        more = "a higher `character_coverage` has more of its characters"
        why = "the given vocabulary lacks some of its characters" if is_given else more
        yield f"{unknown:.2%} of its tokens are unknown, which is over {MOST_UNKNOWN:.1%}: {why}"


LANGS = "langs.txt"
OF_TRAINED = ("vocab_size", "character_coverage", "temperature")  # meaningless for a given one


@dataclass(frozen=True)
class GivenVocabulary:
    """What another data directory has: its `model` and `dictionary`, its languages in order, how tokens are written.

    Of a translator's file (`translator`) `codes` are those that a user chose of its languages, for languages of text.
    """

    files: dict[str, Path]
    langs: tuple[str, ...]
    language_tokens: Spelling
    translator: Path | None = None
    codes: Mapping[str, str] = field(default_factory=dict)

    def of_recipe(self, recipe: Recipe) -> Recipe:
        """The recipe with this vocabulary instead of its own; see `codes_for` (UserError: both sides of two)."""
        recipe = replace(recipe, codes=self.codes_for({lang for one in recipe.corpora for lang in one.languages}))
        sources = {name: str(self.files[name]) for name in SOURCE_FILES if name in self.files}
        both = recipe.source_languages() & {way.split("-")[1] for way in recipe.trained()} if sources else ()
        for lang in sorted(both):
            raise UserError(
                f"`{self.translator}` has a vocabulary of sources and one of targets: each language must be one or the "
                f"other, but {lang} is both; make a data directory for each direction."
            )
        recipe = replace(recipe, of_sources=sources)
        model, dictionary, tokens = str(self.files["model"]), str(self.files["dictionary"]), self.language_tokens
        given = replace(recipe.vocabulary, size=None, model=model, dictionary=dictionary, language_tokens=tokens)
        return replace(recipe, vocabulary=given, known_languages=self.langs)

    def codes_for(self, langs: Iterable[str]) -> dict[str, str]:
        """What a translator calls the languages of text (UserError: it lacks one); nothing without a translator."""
        if self.translator is None:
            return {}
        from fairseq_mtmoe.data.corpora.vocabulary.codes import codes_of_model  # with tables that nothing else needs

        return codes_of_model(langs, self.langs, self.codes)

    def how_to_go_on(self, data: Path) -> str:
        """How a model of these languages goes on with a data directory that was made with this vocabulary."""
        if self.translator is not None:
            return f"Its languages and forms of sentences are those of {self.translator}, which `--init-model` says."
        new = [lang for lang in languages_in(data) if lang not in self.langs]
        how = f"--finetune-from-model CHECKPOINT --lang-dict {data / LANGS}"
        sentence = f"To train a model with this vocabulary on: {how}."
        if not new:
            return sentence
        others = " and so on in this order" if len(new) > 1 else ""
        return f"{sentence} It must know {', '.join(new)}: `mtmoe add-task CHECKPOINT OUT --task {new[0]}`{others}."


def vocabulary_of_data(folder: Path) -> GivenVocabulary:
    """Return the vocabulary of a data directory of `mtmoe prepare`; a `UserError` if the folder is none."""
    if not folder.is_dir():
        raise_invalid("--vocabulary-from", "a data directory of `mtmoe prepare`", str(folder))
    model = regular_file(folder / SENTENCEPIECE, "the SentencePiece model of a data directory of `mtmoe prepare`")
    folders = (folder, folder / "shard0")
    dictionary = next((path for each in folders for path in sorted(each.glob(dictionary_name("*")))), None)
    if dictionary is None:
        raise UserError(f"`{folder}` must have a dictionary such as {dictionary_name('en')}, but has none.")
    style = folder / TOKEN_STYLE
    is_mbart = style.exists() and read_text(style).strip() == Spelling.mbart.name
    files = {"model": Path(os.path.abspath(model)), "dictionary": Path(os.path.abspath(dictionary))}
    return GivenVocabulary(files, languages_in(folder), Spelling.mbart if is_mbart else Spelling.plain)


def languages_in(folder: Path) -> tuple[str, ...]:
    """Return the languages of a data directory in their order; a `UserError` where its list is none."""
    path = folder / LANGS
    langs = read_text(path, "the list of a data directory's languages").split()
    for lang in langs:
        if not CODE.fullmatch(lang):
            raise_invalid(f"a line of {path}", "the code of a language, such as en", lang)
    return tuple(langs)
