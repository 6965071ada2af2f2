"""The folder that `mtmoe evaluate` writes: found finished, gone on with, begun anew, or refused.

While hypotheses are made, a journal has those of every finished batch: batches are of many pairs, which are therefore
finished near the end alone, and a kill would lose the work of hours. What is in the journal is not translated again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from fairseq_mtmoe.analysis.score_files import JSON_FILE, MARKDOWN_FILE, Scores, scores_in, scores_of_pairs
from fairseq_mtmoe.analysis.score_tables import remove_scores, write_scores
from fairseq_mtmoe.analysis.scores import PairScore
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import check_writable, read_bytes, read_json, write_text
from fairseq_mtmoe.io.journal import Journal, entries
from fairseq_mtmoe.io.typed import Name, Rule, Text

JOURNAL = "unfinished.jsonl"

_PLACES = ("checkpoint", "data")  # settings that say where something is; what is there has a digest
_Number = Annotated[Text, Rule("a sentence's number", lambda value: value.isdecimal() and len(value) < 12)]
_NOTE = {"settings": dict[Text, Any], "batch": dict[Name, dict[_Number, Text]], "score": PairScore}
_DIGESTS = {"checkpoint_sha256": "another checkpoint", "data_sha256": "other data"}


class ScoreFolder:
    """Where the results of one evaluation go: a folder that is made when the first one is there.

    Args:
        settings: everything that decides about the results, ready for JSON.
        overwrite: whether other results in the folder may be replaced.

    Attributes:
        known: hypotheses that an interrupted evaluation left, by pair and number of the sentence.
        scored: the scores that it left.
    """

    def __init__(self, folder: Path, settings: Mapping[str, object], overwrite: bool) -> None:
        self.folder = folder
        self.settings: dict[str, object] = json.loads(json.dumps(settings))
        self.known: dict[str, dict[int, str]] = {}
        self.scored: dict[str, PairScore] = {}
        self._overwrite = overwrite
        self._before: Mapping[str, PairScore] = {}
        self._journal: Journal | None = None

    def finished(self) -> Scores | None:
        """The scores of these settings, if the folder has them; else None, and the folder can be written to.

        Raises:
            UserError: it has other scores that may not be replaced, or cannot be written to.
        """
        if (self.folder / JSON_FILE).exists():
            try:
                found = scores_in(read_json(self.folder / JSON_FILE, "scores of mtmoe evaluate"))
            except ValueError:
                found = Scores([], {}, {})
            self._before = found.pairs
            differing = self._differing(found.settings)
            is_whole = (self.folder / MARKDOWN_FILE).is_file() and all(map(self.has_texts, found.pairs.values()))
            if not differing and is_whole:
                return found
            self._refuse("the scores", differing)
        elif (left := self._left()) is not None:
            self._refuse("an unfinished evaluation", self._differing(left[0]))
        else:  # what nobody says the origin of is perhaps not ours
            kinds = ("hyp", "ref", "ref[0-9]*")
            texts = sorted(path.name for kind in kinds for path in self.folder.glob(f"*-*.{kind}"))
            if texts and not self._overwrite:
                raise UserError(
                    f"`{self.folder}` holds {texts[0]} without scores that say what it is; give another folder as "
                    "--out, or --overwrite to replace it."
                )
        check_writable(self.folder)
        return None

    def begin(self) -> None:
        """Take up what an interrupted evaluation with these settings left, and note from now on what is done.

        Raises:
            UserError: another evaluation writes to the folder.
        """
        self._journal = Journal(self.folder / JOURNAL)
        left = self._left()
        if left is not None and not self._differing(left[0]):
            for entry in left[1]:
                for pair, texts in entry.get("batch", {}).items():
                    self.known.setdefault(pair, {}).update({int(number): text for number, text in texts.items()})
                if "score" in entry:
                    self.scored[entry["score"]["pair"]] = PairScore(**entry["score"])
            return
        self._journal.clear()
        self._journal.add({"settings": self.settings})

    def note(self, batch: Mapping[str, Mapping[int, str]]) -> None:
        """Note the hypotheses of a finished batch."""
        assert self._journal is not None
        self._journal.add({"batch": batch})

    def write_texts(
        self,
        score: PairScore,
        hypotheses: Sequence[str],
        references: Sequence[Sequence[str]],
        by_sentence: Mapping[str, Sequence[float]],
    ) -> None:
        """Write what was compared of one pair; from the first pair on, the folder has no scores of before."""
        remove_scores(self.folder)
        self._remove_texts(score.pair)
        for number, lines in enumerate(references):
            write_text(self.folder / f"{score.pair}.ref{number or ''}", as_file(lines))
        for name, figures in by_sentence.items():
            write_text(self.folder / f"{score.pair}.{name.lower()}", as_file([repr(figure) for figure in figures]))
        write_text(self.folder / f"{score.pair}.hyp", as_file(hypotheses))
        if self._journal is not None:
            self._journal.add({"score": {"pair": score.pair, **score.fields}})

    def has_texts(self, score: PairScore) -> bool:
        """Whether the texts of a pair are there as they were scored."""
        references = [f"ref{number or ''}" for number in range(1 + score.more_references)]
        files = [self.folder / f"{score.pair}.{kind}" for kind in ("hyp", *references, *map(str.lower, score.metrics))]
        if not all(path.is_file() for path in files):
            return False
        digest = hashlib.sha256(read_bytes(files[0])).hexdigest()
        return score.hypotheses_sha256 in ("", digest)  # scores of before 0.1.8 have none

    def write_scores(self, results: Sequence[PairScore]) -> Scores:
        """Write the scores of all pairs, and remove the texts of those that were there before and are not now."""
        for pair in self._before.keys() - {result.pair for result in results}:
            self._remove_texts(pair)
        scores = scores_of_pairs(results, self.settings)
        write_scores(self.folder, scores)
        if self._journal is not None:
            self._journal.remove()
        return scores

    def close(self) -> None:
        """Let others write to the folder; what is unfinished stays noted."""
        if self._journal is not None:
            self._journal.close()

    def _remove_texts(self, pair: str) -> None:
        for pattern in ("hyp", "ref", "ref[0-9]*", "comet"):
            for path in self.folder.glob(f"{pair}.{pattern}"):
                path.unlink()

    def _left(self) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
        """The settings and notes of an evaluation that was interrupted."""
        first, *others = entries(self.folder / JOURNAL, _NOTE) or [{}]
        return (first["settings"], others) if "settings" in first else None

    def _refuse(self, what: str, differing: Sequence[str]) -> None:
        if differing and not self._overwrite:
            raise UserError(
                f"`{self.folder}` holds {what} of {', '.join(differing)}; give another folder as --out, or --overwrite "
                "to replace them."
            )

    def _differing(self, settings: Mapping[str, object]) -> list[str]:
        """What the scores in the folder were made with that is otherwise now."""
        names = [name for name in {**settings, **self.settings}
                 if name not in _PLACES and settings.get(name) != self.settings.get(name)]  # fmt: skip
        if not all(name in settings for name in _DIGESTS):
            return ["another version of fairseq_mtmoe"]
        return [_DIGESTS.get(name, f"{name} {settings.get(name)} (now {self.settings.get(name)})") for name in names]


def as_file(lines: Sequence[str]) -> str:
    """The content of a file with these lines."""
    return "".join(f"{line}\n" for line in lines)


def digest_of_data(folder: Path, subset: str) -> str:
    """A SHA-256 of the files of a data directory that decide about the scores of one subset."""
    patterns = (f"{subset}.*", f"raw/{subset}.*", "dict.*.txt", "tiers.json", "spm.model")
    found = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        if path.is_file():
            found.update(f"{path.relative_to(folder)}\0".encode())
            with open(path, "rb") as file:
                found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()
