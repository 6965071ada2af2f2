"""The folder that `mtmoe evaluate` writes: found finished, begun anew, or refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairseq_mtmoe.analysis import score_files
from fairseq_mtmoe.analysis import scores as scoring
from fairseq_mtmoe.analysis.score_files import JSON_FILE, MARKDOWN_FILE
from fairseq_mtmoe.analysis.scores import PairScore
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import check_writable, read_text, write_text

_PLACES = ("checkpoint", "data")  # settings that say where something is; what is there has a digest
_DIGESTS = {"checkpoint_sha256": "another checkpoint", "data_sha256": "other data"}


class ScoreFolder:
    """Where the results of one evaluation go.

    Args:
        folder: made when the first result is there.
        settings: everything that decides about the results, ready for JSON.
        overwrite: whether other results in the folder may be replaced.
    """

    def __init__(self, folder: Path, settings: Mapping[str, object], overwrite: bool) -> None:
        self.folder = folder
        self.settings: dict[str, object] = json.loads(json.dumps(settings))
        self._overwrite = overwrite
        self._before: list[PairScore] = []

    def finished(self) -> list[PairScore] | None:
        """The scores of these settings, if the folder has them; else None, and the folder can be written to.

        Raises:
            UserError: it has other scores that may not be replaced, or cannot be written to.
        """
        path = self.folder / JSON_FILE
        if path.exists():
            settings, self._before = self._read(path)
            differing = self._differing(settings)
            if not differing and self._is_whole():
                return self._before
            if differing and not self._overwrite:
                raise UserError(
                    f"`{self.folder}` holds the scores of {', '.join(differing)};"
                    " give another folder as --out, or --overwrite to replace them."
                )
        check_writable(self.folder)
        return None

    def write_texts(self, pair: str, hypotheses: Sequence[str], references: Sequence[str]) -> None:
        """Write what was compared of one pair; from the first pair on, the folder has no scores of before."""
        score_files.remove_scores(self.folder)
        for path, lines in zip(self._texts(pair), (hypotheses, references), strict=True):
            write_text(path, "".join(f"{line}\n" for line in lines))

    def write_scores(self, results: Sequence[PairScore]) -> None:
        """Write the scores of all pairs, and remove the texts of those that were there before and are not now."""
        for score in self._before:
            if score.pair not in {result.pair for result in results}:
                for path in self._texts(score.pair):
                    path.unlink(missing_ok=True)
        texts = scoring.to_json(results, self.settings), scoring.to_markdown(results, self.settings)
        score_files.write_scores(self.folder, *texts)

    def _texts(self, pair: str) -> tuple[Path, Path]:
        return self.folder / f"{pair}.hyp", self.folder / f"{pair}.ref"

    def _read(self, path: Path) -> tuple[dict[str, object], list[PairScore]]:
        try:
            return scoring.from_json(read_text(path, "scores of mtmoe evaluate"))
        except ValueError:
            return {}, []

    def _differing(self, settings: Mapping[str, object]) -> list[str]:
        """What the scores in the folder were made with that is otherwise now."""
        names = [
            name
            for name in dict.fromkeys([*settings, *self.settings])
            if name not in _PLACES and settings.get(name) != self.settings.get(name)
        ]
        if not all(name in settings for name in _DIGESTS):
            return ["another version of fairseq_mtmoe"]
        return [_DIGESTS.get(name, f"{name} {settings.get(name)} (now {self.settings.get(name)})") for name in names]

    def _is_whole(self) -> bool:
        files = [path for score in self._before for path in self._texts(score.pair)]
        return all(path.is_file() for path in [*files, self.folder / MARKDOWN_FILE])


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
