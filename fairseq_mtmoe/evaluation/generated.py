"""What fairseq-generate leaves: lines `S-`, `T-`, `H-` and `D-` with the numbers of sentences, in any order.

Each direction has files of its own, several where it was translated in shards. What else stands there (a log, scores of
words, alignments) is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairseq.data.data_utils import post_process

from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.io.files import text_lines

_LINE = re.compile(r"([STHD])-([0-9]+)\t(.*)")
_END = re.compile(r".*\bGenerate .+ with beam=.*")
_SCORED = re.compile(r"(\S+)\t?(.*)")
_LANGUAGE = re.compile(r"^(__\S+__|\[\S+\])\s*")
_PAIR = re.compile(r"(?<![\w-])([a-z]{2,3}(?:_\w+)?-[a-z]{2,3}(?:_\w+)?)(?![\w-])")
_TWO_LETTERS = re.compile(r"[a-z]{2}(?:_\w+)?-[a-z]{2}(?:_|$)")


@dataclass(frozen=True)
class Generated:
    """The texts of one direction, by the numbers of their sentences.

    Attributes:
        missing: sentences between the first and the last that the files do not have: fairseq-generate leaves out those
            that are too long, and the last batch where its size is no multiple of 8.
        unended: files without fairseq-generate's last line, of which nobody can see whether they are whole.
    """

    sources: list[str]
    hypotheses: list[str]
    references: list[str]
    altered: int  # references that have `<<unk>>`
    missing: int
    unended: list[Path]


@dataclass
class _Lines:
    """What was found of each kind, by sentence: the text, and of hypotheses the score before it."""

    texts: dict[str, dict[int, str]] = field(default_factory=lambda: {kind: {} for kind in "ST"})
    scored: dict[str, dict[int, tuple[float, str]]] = field(default_factory=lambda: {kind: {} for kind in "HD"})
    unended: list[Path] = field(default_factory=list)


def read_generated(files: Sequence[Path], joining: str | None = None) -> Generated:
    """The best hypotheses of a direction.

    Args:
        files: of all its shards.
        joining: how subwords join (`sentencepiece`, `subword_nmt`, `none`); None: as the text looks.

    Raises:
        UserError: a file is missing or torn, two of them differ about a sentence, or there is nothing to compare with.
    """
    found = _Lines()
    for file in files:
        _read(file, found)
    names = ", ".join(map(str, files))
    hypotheses = found.scored["D"] if found.scored["D"].keys() == found.scored["H"].keys() else found.scored["H"]
    hypotheses = hypotheses or found.scored["D"]
    references = found.texts["T"]
    if not hypotheses:
        raise UserError(f"`{names}` must be what fairseq-generate wrote, but has no line such as `H-0`.")
    lonely = sorted(hypotheses.keys() ^ references.keys())
    if lonely:
        which = "hypothesis" if lonely[0] in references else "reference"
        raise UserError(f"`{names}` must have both of each sentence, but has no {which} of {lonely[0]}: it is torn.")
    numbers = sorted(hypotheses)
    missing = numbers[-1] + 1 - len(numbers)
    if missing and found.unended:
        raise UserError(
            f"`{found.unended[0]}` must end with a line such as `Generate test with beam=5: …`, but has none, and"
            f" {missing} of the sentences before the last are missing: it is torn, or an excerpt."
        )
    lines = [hypotheses[number][1] for number in numbers]
    joining = _joining(lines) if joining is None else joining
    texts = {kind: [found.texts[kind].get(number, "") for number in numbers] for kind in "ST"}
    altered = sum("<<unk>>" in line for line in texts["T"])
    sources = [_LANGUAGE.sub("", line) for line in texts["S"]]
    return Generated(
        sources=_joined(sources, joining),
        hypotheses=_joined(lines, joining),
        references=_joined(texts["T"], joining),
        altered=altered,
        missing=missing,
        unended=found.unended,
    )


def named_files(arguments: Iterable[str]) -> dict[str, list[Path]]:
    """The files of each pair, of arguments such as `en-de=FILE,FILE` or of paths that have a pair in their names.

    Raises:
        UserError: nothing says which pair a file is of, or several things do.
    """
    found: dict[str, list[Path]] = {}
    for argument in arguments:
        name, sign, paths = argument.partition("=")
        if sign and re.fullmatch(r"[^-/=]+-[^-/=]+", name):
            found.setdefault(name, []).extend(Path(path) for path in paths.split(",") if path)
            continue
        found.setdefault(_pair_in(argument), []).append(Path(argument))
    return found


def _pair_in(path: str) -> str:
    """The one pair that a path names. Of several parts that look like one (`gen-out`) those with two letters count."""
    pairs: set[str] = set(_PAIR.findall(path))
    if len(pairs) > 1:
        pairs = set(filter(_TWO_LETTERS.match, pairs))
    if len(pairs) != 1:
        raise_invalid(
            "a file of fairseq-generate", "given as en-de=FILE where its path does not name en-de alone", path
        )
    return pairs.pop()


def _read(file: Path, found: _Lines) -> None:
    is_ended = False
    for line in text_lines(file, "what fairseq-generate wrote"):
        match = _LINE.fullmatch(line)
        if match is None:
            is_ended = is_ended or _END.fullmatch(line) is not None
            continue
        kind, number, text = match[1], int(match[2]), match[3]
        if kind in found.texts:
            if found.texts[kind].setdefault(number, text) != text:
                raise UserError(f"`{file}` must be of the same test set as those before, but {kind}-{number} differs.")
        else:
            _note_best(file, found.scored[kind], number, text)
    if not is_ended:
        found.unended.append(file)


def _note_best(file: Path, best: dict[int, tuple[float, str]], number: int, text: str) -> None:
    """Keep the best of a sentence's hypotheses: with `--nbest` there are several."""
    match = _SCORED.fullmatch(text)
    try:
        score = float(match[1]) if match else None
    except ValueError:
        score = None
    if match is None or score is None:
        raise UserError(f"`{file}` must have a score before each hypothesis, but sentence {number} has none.")
    if number not in best or score > best[number][0]:
        best[number] = score, match[2]


def _joining(lines: Sequence[str]) -> str:
    """How the words of hypotheses join, from their marks."""
    words = [word for line in lines for word in line.split(" ")]
    if sum(word.startswith("▁") for word in words) > 0.1 * len(words):
        return "sentencepiece"
    return "subword_nmt" if sum(word.endswith("@@") for word in words) > 0.01 * len(words) else "none"


def _joined(lines: Sequence[str], joining: str) -> list[str]:
    return list(lines) if joining == "none" else [post_process(line, joining) for line in lines]
