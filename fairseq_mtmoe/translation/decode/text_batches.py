"""Convert lines of text to rows of tokens, and hypotheses to lines.

Every line of input has one line of output. A line that is too long for the model is split at the
ends of sentences, in any script, and its translations are joined.
"""

import functools
import itertools
import logging
import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import regex
from fairseq import tasks
from fairseq.data import Dictionary
from numpy.typing import NDArray

from fairseq_mtmoe.checkpoints.rebuild import model_options
from fairseq_mtmoe.checkpoints.sharding import has_experts
from fairseq_mtmoe.core.errors import UserError, raise_invalid, shortened, visible
from fairseq_mtmoe.translation.data.new_language import codes_of
from fairseq_mtmoe.translation.data.vocabulary import End, Side, Vocabulary, ends_of
from fairseq_mtmoe.translation.decode import stored
from fairseq_mtmoe.translation.decode.decode import Direction, Row
from fairseq_mtmoe.translation.decode.lines import Lines
from fairseq_mtmoe.translation.decode.test_sets import Speller
from fairseq_mtmoe.translation.decode.translator import UNKNOWN

TASKS = ("translation_heated",)
BY_PIECES = "a task that translates by SentencePiece's pieces"

logger = logging.getLogger(__name__)

# After marks that end sentences, with closing brackets: at a space, or directly after marks other
# than ASCII's.
_ENDS = regex.compile(
    r"(?V1)(?<=\p{Sentence_Terminal}[\p{Pe}\p{Pf}\p{Pi}\"']*)\s+"
    r"|(?<=[\p{Sentence_Terminal}--\p{ASCII}][\p{Pe}\p{Pf}]*)"
    r"(?![\p{Sentence_Terminal}\p{Pe}\p{Pf}\s]|$)"
)
_BYTE = regex.compile(r"<0x[0-9A-F]{2}>")


class Translated(NamedTuple):
    """A line's translation, its score to the base 2, and its length.

    Its length counts tokens, with the end. `is_cut`: a part reached the limit of tokens.
    """

    text: str
    score: float
    length: int
    is_cut: bool = False


NOTHING = Translated("", 0.0, 0)


class LinePart(NamedTuple):
    """The key of a row: a part of a line, to translate into `target`."""

    target: str
    line: int
    part: int


def joined(parts: Sequence[Translated], lenpen: float) -> Translated:
    """Join the translations of a line's parts, with the score of one hypothesis."""
    if len(parts) < 2:
        return parts[0] if parts else NOTHING
    text = ""
    for part in parts:  # scripts with wide characters have no spaces
        is_wide = bool(text) and unicodedata.east_asian_width(text[-1]) in "WF"
        text += part.text if is_wide or not text else f" {part.text}"
    length = sum(part.length for part in parts)
    total = sum(part.score * part.length**lenpen for part in parts)
    return Translated(text, total / length**lenpen, length, any(part.is_cut for part in parts))


class Pieces:
    """A side's SentencePiece model with the ids of its pieces in a dictionary."""

    def __init__(self, side: Side, dictionary: Dictionary) -> None:
        self._side = side
        self._processor = side.processor
        self._dictionary = dictionary
        count = self._processor.get_piece_size()
        names = list(map(self._processor.id_to_piece, range(count)))
        ids = list(map(dictionary.index, names))
        ids[self._processor.unk_id()] = dictionary.unk()
        self._ids: NDArray[np.int64] = np.array(ids, dtype=np.int64)
        # Characters of pretrained vocabularies that their SentencePiece model lacks; it spells what
        # is unknown to it
        self._others = {
            name: dictionary.index(name) for name in set(side.symbols).difference(names)
        }
        # Only SentencePiece joins byte pieces to characters.
        self._has_bytes = any(map(_BYTE.fullmatch, names))

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each line, without an end."""
        unknown = self._dictionary.unk()
        encoded = []
        for line, pieces in zip(lines, self._side.encode(lines), strict=True):
            ids = self._ids[pieces] if pieces else self._ids[:0]
            if self._others and unknown in ids:
                (names,) = self._side.encode([line], str)
                others = [self._others.get(name, unknown) for name in names]
                ids = np.where(ids == unknown, others, ids)
            encoded.append(ids.tolist())
        return encoded

    def speller(self, ignored: Sequence[int]) -> Callable[[Any], str]:
        """Return a converter of tokens to a line as `mtmoe evaluate` writes it."""
        spell = Speller(self._dictionary, None if self._has_bytes else "sentencepiece", ignored)

        def line_of(tokens: Any) -> str:
            text = spell(tokens, UNKNOWN)
            if self._has_bytes:
                text = self._processor.decode(text.split(" "))
            return " ".join(text.replace("\t", " ").splitlines())  # no character in it ends a line

        return line_of


class TextCodec:
    """Makes rows of lines and text of tokens, as an ensemble's first file says."""

    def __init__(self, states: Sequence[Mapping[str, Any]], paths: Sequence[str]) -> None:
        models = list(zip(states, paths, strict=True))
        settings = [
            stored.task_settings(dict(state), path, TASKS, BY_PIECES) for state, path in models
        ]
        self._trained = dict(zip(paths, map(_trained_on, states, settings), strict=True))
        self.path = paths[0]
        saved = states[0].get("task_state") or {}
        langs = stored.names_in(saved.get("langs"))
        vocabulary = Vocabulary.of_state(saved)
        if len(langs) < 2 or vocabulary is None:
            raise UserError(
                f"`{self.path}` has no languages and vocabulary, and so cannot translate text: use "
                "a file of `mtmoe import-hf`, or a checkpoint of a run on data of `mtmoe prepare`."
            )
        self.vocabulary = vocabulary
        stored.change(
            settings[0],
            langs=",".join(langs),
            lang_dict=None,
            data="",
            source_lang=langs[0],
            target_lang=langs[1],
            lang_pairs=",".join(self._trained[self.path][0]),
        )
        self.task: Any = tasks.setup_task(settings[0], vocabulary=vocabulary)
        self.task.load_state_dict(dict(saved))
        for state, path in models[1:]:
            self.task.check_vocabulary(state.get("task_state"), path)
        self.langs: list[str] = list(self.task.langs)
        options = model_options(states[0]) or {}
        if has_experts(states[0]) or options.get("conditional", "none") != "none":
            self.task.task_names = options["task_names"].split(",")
        limit = options.get("max_source_positions")
        self.longest: int = min(filter(None, (self.task.args.max_source_positions, limit)))
        self._pieces = functools.cache(self._pieces_until)
        for pieces_of in (self.source, self.target):
            pieces_of(langs[0])  # refuses a damaged one before the model is built
        self._spec: str | None = self.task.args.langtoks["main"][0]
        self._replaces_ends: bool = self.task.args.lang_tok_replacing_bos_eos
        # Number of a source's pieces, without its end and language token
        self.room = self.longest - 1 - (self._spec is not None and not self._replaces_ends)

    @property
    def directions(self) -> list[tuple[str, str]]:
        """Sources and targets that the first file was trained on; all if it names none."""
        pairs, only_new_rows = self._trained[self.path]
        if not pairs or only_new_rows:
            return list(itertools.permutations(self.langs, 2))
        directions = []
        for pair in pairs:
            source, target = pair.split("-")
            directions.append((source, target))
        return directions

    def ends(self, lang: str) -> tuple[End | None, End | None]:
        """Return the ends of source and target vocabularies for a language: `ends_of`."""
        return ends_of(self.task.state.state_dict, lang)

    def source(self, lang: str) -> Pieces:
        """Return the pieces that split text in a language."""
        return self._pieces("source", self.ends(lang)[0])

    def target(self, lang: str) -> Pieces:
        """Return the pieces that are joined to text in a language."""
        return self._pieces("target", self.ends(lang)[1])

    def _pieces_until(self, name: str, end: End | None) -> Pieces:
        side: Side = getattr(self.vocabulary, name)
        if end is None:
            return Pieces(side, getattr(self.task, f"{name}_dictionary"))
        old = side.until(end)
        return Pieces(old, old.dictionary())

    def check(
        self, source: str, targets: Sequence[str], names: tuple[str, str] = ("--from", "--to")
    ) -> None:
        """Refuse unknown languages (UserError, with the nearest ones).

        names: of the arguments, for errors.
        """
        named = [(names[0], source)]
        named += [(names[1], target) for target in targets]
        for option, lang in named:
            if lang not in self.langs:
                raise_invalid(
                    option, f"a language of {self.path} ({shortened(self.langs, lang)})", lang
                )
        for target in targets:
            self.task.task_id(f"{source}-{target}")  # refuses what a model of pairs lacks
            is_old = self.ends(source)[0] is not None and self.ends(target)[1] is not None
            for path, (pairs, only_new_rows) in self._trained.items():
                if f"{source}-{target}" not in pairs and not (only_new_rows and is_old):
                    _warn_of_untrained(path, f"{source}-{target}", pairs)

    def rows(self, lines: Lines, source: str, targets: Sequence[str]) -> list[Row]:
        """Return a row for each target and part of a line, by its `LinePart`.

        Raises:
            UserError: one is too long.
        """
        parts = self._split(lines, source)
        rows = []
        for target in targets:
            direction = self.direction(source, target)
            for line, pieces_of_parts in enumerate(parts):
                for part, pieces in enumerate(pieces_of_parts):
                    tokens = self.tokens(pieces, source, target)
                    rows.append(Row(LinePart(target, line, part), direction, tokens))
        return rows

    def direction(self, source: str, target: str) -> Direction:
        """Return the facts of a language pair that a search needs."""
        return Direction.of(self.task, f"{source}-{target}")

    def expect_short(self, lines: Lines, source: str) -> None:
        """Refuse lines with a sentence that is too long (UserError).

        This checks all text before any is translated. To be fast, it tokenizes only lines with many
        characters; `rows` refuses the others.
        """
        for number, line in enumerate(lines.lines, start=lines.first):
            if len(line) > self.longest // 4:
                self._split(Lines([line], lines.name, number), source)

    def _split(self, lines: Lines, source: str) -> list[list[list[int]]]:
        """Return the tokens of each part of each line: mostly one part; none if empty."""
        encode = self.source(source).encode
        parts_of_lines: list[list[list[int]]] = []
        for pieces in encode(lines.lines):
            parts_of_lines.append([pieces] if pieces else [])
        for number, parts in enumerate(parts_of_lines):
            if not parts or len(parts[0]) <= self.room:
                continue
            sentences = [part for part in _ENDS.split(lines.lines[number]) if part.strip()]
            parts_of_lines[number] = [pieces for pieces in encode(sentences) if pieces]
            longest = max(map(len, parts_of_lines[number]))
            if longest > self.room:
                raise UserError(
                    f"Line {number + lines.first} of {lines.name} must have sentences of at most "
                    f"{self.room} tokens, but has one of {longest}; break it up."
                )
        return parts_of_lines

    def tokens(self, pieces: list[int], source: str, target: str) -> list[int]:
        """Return the encoder's input, in the form of fairseq's multilingual data or ours."""
        end = self.task.source_dictionary.eos()
        token = self.task.data_manager.get_encoder_langtok(source, target, self._spec)
        if token is None:
            return [*pieces, end]
        if self._replaces_ends:
            return [*pieces, token]
        if self.task.args.encoder_langtok_last:
            return [*pieces, end, token]
        return [token, *pieces, end]

    @functools.cached_property
    def language_tokens(self) -> list[int]:
        """Ids of all languages' tokens among targets; they are never text."""
        dictionary = self.task.target_dictionary
        settings = vars(self.task.args)
        symbols = (symbol for lang in self.langs for symbol in codes_of(lang, settings))
        return [dictionary.index(symbol) for symbol in symbols if symbol in dictionary]


def _trained_on(state: Mapping[str, Any], settings: Any) -> tuple[tuple[str, ...], bool]:
    """Return the pairs that a checkpoint was last trained on, and how.

    The second value tells whether the training changed only new embeddings.
    """
    adapts = bool((model_options(state) or {}).get("pemt_stage"))  # it trained adapters, too
    pairs = stored.pairs_of(settings, state.get("task_state") or {})
    return tuple(pairs), bool(stored.setting(settings, "train_only")) and not adapts


@functools.cache
def _warn_of_untrained(path: str, direction: str, trained: tuple[str, ...]) -> None:
    """Log a warning, once for each direction that a checkpoint does not name."""
    if trained:
        shown = visible(shortened(trained, direction))
        logger.warning(
            f"{path} was last trained on {shown}, not on {direction}: its output may be poor"
        )


def bits(score: float) -> float:
    """Convert a natural logarithm to the base 2."""
    return score / math.log(2)
