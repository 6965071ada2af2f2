"""Read fairseq-generate's output: lines `S-`, `T-`, `H-` and `D-` with numbers.

Other lines may stand between them.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq.data.data_utils import post_process

from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.evaluation.translator import subword_marks
from fairseq_mtmoe.io.files import text_lines

_LINE = re.compile(r"([STHD])-([0-9]+)\t(.*)")
_END = re.compile(r".*\bGenerate .+ with beam=.*")
_SCORED = re.compile(r"(\S+)\t?(.*)")
_LANGUAGE = re.compile(r"^(__\S+__|\[\S+\])\s*")
_PAIR = re.compile(r"(?<![\w-])([a-z]{2,3}(?:_\w+)?-[a-z]{2,3}(?:_\w+)?)(?![\w-])")
_TWO_LETTERS = re.compile(r"[a-z]{2}(?:_\w+)?-[a-z]{2}(?:_|$)")

Scored = tuple[float, str]  # score and text; the score of sources and references is 0
Found = dict[str, dict[int, Scored]]  # by kind of line and number of the sentence


@dataclass(frozen=True)
class Generated:
    """The texts of one direction, by the numbers of their sentences."""

    sources: list[str]
    hypotheses: list[str]
    references: list[str]
    altered: int  # references with `<<unk>>`
    missing: int  # sentences between the first and the last that fairseq-generate left out
    unended: list[Path]  # files without fairseq-generate's last line; they may be truncated


def read_generated(files: Sequence[Path], joining: str | None = None) -> Generated:
    """Return a direction's best hypotheses (UserError: torn or inconsistent files)."""
    found: Found = {kind: {} for kind in "STHD"}
    unended = [file for file in files if not _read(file, found)]
    names, references = ", ".join(map(str, files)), found["T"]
    has_detokenized = found["D"] and (not found["H"] or found["D"].keys() == found["H"].keys())
    hypotheses = found["D" if has_detokenized else "H"]
    if not hypotheses:
        raise UserError(f"`{names}` must be output of fairseq-generate, but has no line such as `H-0`.")
    lonely = sorted(hypotheses.keys() ^ references.keys())
    if lonely:
        which = "hypothesis" if lonely[0] in references else "reference"
        raise UserError(f"`{names}` must have H and T of each sentence, but has no {which} of {lonely[0]}: it is torn.")
    numbers = sorted(hypotheses)
    missing = numbers[-1] + 1 - len(numbers)
    if missing and unended:
        raise UserError(
            f"`{unended[0]}` must end with a line such as `Generate test with beam=5: …`, but has none, and"
            f" {missing} of the sentences before the last are missing: it is torn, or an excerpt."
        )
    lines, right = ([texts[number][1] for number in numbers] for texts in (hypotheses, references))
    sources = [_LANGUAGE.sub("", found["S"].get(number, (0, ""))[1]) for number in numbers]
    joining = subword_marks([word for line in lines for word in line.split(" ")]) if joining is None else joining
    altered = sum("<<unk>>" in line for line in right)
    sources, lines, right = ([post_process(text, joining) for text in texts] for texts in (sources, lines, right))
    return Generated(sources, lines, right, altered, missing, unended)


def named_files(arguments: Iterable[str]) -> dict[str, list[Path]]:
    """Return each pair's files from arguments `en-de=FILE,FILE`, or paths with a pair."""
    found: dict[str, list[Path]] = {}
    for argument in arguments:
        name, sign, paths = argument.partition("=")
        if sign and re.fullmatch(r"[^-/=]+-[^-/=]+", name):
            if not (files := [Path(path) for path in paths.split(",") if path]):
                raise UserError(f"`{argument}` must name files of fairseq-generate, but names none.")
            found.setdefault(name, []).extend(files)
        else:
            found.setdefault(_pair_in(argument), []).append(Path(argument))
    return found


def _pair_in(path: str) -> str:
    """Return the pair in a path; of several such parts, those with two letters count."""
    pairs: set[str] = set(_PAIR.findall(path))
    if len(pairs) > 1:
        pairs = set(filter(_TWO_LETTERS.match, pairs))
    if len(pairs) != 1:
        rule = "given as en-de=FILE unless its path names exactly one pair"
        raise_invalid("a file of fairseq-generate", rule, path)
    return pairs.pop()


def _read(file: Path, found: Found) -> bool:
    """Add a file's texts, the best hypotheses; return whether it has its last line."""
    is_ended = False
    for line in text_lines(file, "output of fairseq-generate"):
        match = _LINE.fullmatch(line)
        if match is None:
            is_ended = is_ended or _END.fullmatch(line) is not None
            continue
        kind, number = match[1], int(match[2])
        text = (0.0, match[3]) if kind in "ST" else _scored(file, number, match[3])
        before = found[kind].setdefault(number, text)
        if kind in "ST" and before != text:
            raise UserError(f"`{file}` must be of the same test set as the files before, but {kind}-{number} differs.")
        if text[0] > before[0]:
            found[kind][number] = text
    return is_ended


def _scored(file: Path, number: int, text: str) -> Scored:
    match = _SCORED.fullmatch(text)
    try:
        return float(match[1] if match else ""), match[2] if match else ""
    except ValueError as error:
        raise UserError(
            f"`{file}` must have a score before each hypothesis, but sentence {number} has none."
        ) from error
