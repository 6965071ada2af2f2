"""Steps of `mtmoe evaluate` for one model or for output of fairseq-generate: translate, score, write, show."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console

from fairseq_mtmoe.analysis import score_files
from fairseq_mtmoe.analysis import scores as scoring
from fairseq_mtmoe.analysis.score_files import JSON_FILE, LATEX_FILE, MARKDOWN_FILE, Scores, scores_of_pairs
from fairseq_mtmoe.analysis.score_tables import remove_scores, score_table, write_scores
from fairseq_mtmoe.analysis.scores import PairScore, PieceBleu
from fairseq_mtmoe.cli._shared import progress_bar, say
from fairseq_mtmoe.data.corpora.recipes.recipe import load_recipe
from fairseq_mtmoe.data.corpora.recipes.schema import plain_code
from fairseq_mtmoe.data.translation.tiers import TIER_RULE, read_tiers
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import check_writable, read_bytes, read_json, write_text
from fairseq_mtmoe.io.journal import Journal, entries
from fairseq_mtmoe.io.typed import Name, Rule, Text

if TYPE_CHECKING:
    from fairseq_mtmoe.evaluation.comet import Comet
    from fairseq_mtmoe.evaluation.pivot import Pivot
    from fairseq_mtmoe.evaluation.translator import Batch, Translation, Translator

JOURNAL = "unfinished.jsonl"

_PATHS = ("checkpoint", "data", "pivot_checkpoint")  # not compared: the files' digests are
_Number = Annotated[Text, Rule("a sentence's number", lambda value: value.isdecimal() and len(value) < 12)]
_NOTE = {"settings": dict[Text, Any], "batch": dict[Name, dict[_Number, Text]], "score": PairScore}
_DIGESTS = {"checkpoint_sha256": "another checkpoint", "data_sha256": "other data"}


class ScoreFolder:
    """Output folder of one evaluation, created with its first result.

    An interrupted evaluation leaves `known`, hypotheses by pair and sentence number, and `scored`, scores by pair.
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
        """Return the folder's scores if they are complete and of these settings, else None.

        Raises:
            UserError: the folder has other results and may not be overwritten, or is not writable.
        """
        if (self.folder / JSON_FILE).exists():
            try:
                found = score_files.scores_in(read_json(self.folder / JSON_FILE, "scores of mtmoe evaluate"))
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
        else:  # texts without scores may be another program's
            kinds = ("hyp", "ref", "ref[0-9]*")
            texts = sorted(path.name for kind in kinds for path in self.folder.glob(f"*-*.{kind}"))
            if texts and not self._overwrite:
                raise UserError(
                    f"`{self.folder}` holds {texts[0]} without scores, of unknown origin; give another folder as "
                    "--out, or --overwrite to replace it."
                )
        check_writable(self.folder)
        return None

    def begin(self) -> None:
        """Read an interrupted evaluation's results, and start the journal.

        Raises:
            UserError: another command writes there, or has written other scores since the first check.
        """
        self._journal = Journal(self.folder / JOURNAL)
        self.finished()
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
        """Record a finished batch's hypotheses in the journal."""
        assert self._journal is not None
        self._journal.add({"batch": batch})

    def write_texts(
        self, score: PairScore, hypotheses: Sequence[str], references: Sequence[Sequence[str]],
        by_sentence: Mapping[str, Sequence[float]],
    ) -> None:  # fmt: skip
        """Write one pair's compared texts; older scores are removed first."""
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
        """Return whether a pair's texts exist and are those that were scored."""
        references = [f"ref{number or ''}" for number in range(1 + score.more_references)]
        files = [self.folder / f"{score.pair}.{kind}" for kind in ("hyp", *references, *map(str.lower, score.metrics))]
        if not all(path.is_file() for path in files):
            return False
        digest = hashlib.sha256(read_bytes(files[0])).hexdigest()
        return score.hypotheses_sha256 in ("", digest)  # scores from before 0.1.8 have none

    def write_scores(self, results: Sequence[PairScore]) -> Scores:
        """Write the scores of all pairs, and remove the texts of pairs that are no longer evaluated."""
        for pair in self._before.keys() - {result.pair for result in results}:
            self._remove_texts(pair)
        scores = scores_of_pairs(results, self.settings)
        write_scores(self.folder, scores)
        if self._journal is not None:
            self._journal.remove()
        return scores

    def close(self) -> None:
        """Unlock the folder; the journal keeps unfinished results."""
        if self._journal is not None:
            self._journal.close()

    def _remove_texts(self, pair: str) -> None:
        for pattern in ("hyp", "ref", "ref[0-9]*", "comet"):
            for path in self.folder.glob(f"{pair}.{pattern}"):
                path.unlink()

    def _left(self) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
        """Return an interrupted evaluation's settings and journal entries; None without."""
        first, *others = entries(self.folder / JOURNAL, _NOTE) or [{}]
        return (first["settings"], others) if "settings" in first else None

    def _refuse(self, what: str, differing: Sequence[str]) -> None:
        if differing and not self._overwrite:
            otherwise = "give another folder as --out, or --overwrite to replace them"
            raise UserError(f"`{self.folder}` holds {what} of {', '.join(differing)}; {otherwise}.")

    def _differing(self, settings: Mapping[str, object]) -> list[str]:
        """Return descriptions of the settings that differ from those of the folder's scores."""
        names = [name for name in {**settings, **self.settings}
                 if name not in _PATHS and settings.get(name) != self.settings.get(name)]  # fmt: skip
        if not all(name in settings for name in _DIGESTS):
            return ["another version of fairseq_mtmoe"]
        before, now = ({**of, "lang_pairs": of.get("lang_pairs") or "all"} for of in (settings, self.settings))
        return [_DIGESTS.get(name, f"{name} {before.get(name)} (now {now.get(name)})") for name in names]


def as_file(lines: Sequence[str]) -> str:
    """Return the lines as a file's content."""
    return "".join(f"{line}\n" for line in lines)


def digest_of_data(folder: Path, subset: str) -> str:
    """Return a SHA-256 of a data directory's files that affect the scores of one subset."""
    patterns = (f"{subset}.*", f"raw/{subset}.*", "dict.*.txt", "tiers.json", "spm.model")
    found = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        if path.is_file():
            found.update(f"{path.relative_to(folder)}\0".encode())
            with open(path, "rb") as file:
                found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()


@dataclass
class Measures:
    """Options for scoring besides BLEU and chrF++: tiers, spBLEU, COMET."""

    tiers: NamedTiers | None
    piece_bleu: PieceBleu | None
    comet_file: Path | None
    cpu: bool
    comet: Comet | None = None

    @property
    def settings(self) -> dict[str, object]:
        """Return the settings that affect scores, for a `ScoreFolder`."""
        from fairseq_mtmoe.evaluation.comet import signature_of

        return {
            "tiers": self.tiers and self.tiers.identity,
            "spm": self.piece_bleu and self.piece_bleu.name,
            "comet": self.comet_file and signature_of(self.comet_file),
        }

    def load(self) -> None:
        """Load COMET if requested: once for all models, before the first translation."""
        from fairseq_mtmoe.evaluation.comet import Comet

        if self.comet_file is not None and self.comet is None:
            self.comet = Comet(self.comet_file, gpus=0 if self.cpu else None)

    def write(
        self, text: Translation, tier: str, sources: Callable[[], Sequence[str]], folder: ScoreFolder
    ) -> PairScore:
        """Score a pair and write its texts, unless an interrupted evaluation has done both; return the scores."""
        digest = hashlib.sha256(as_file(text.hypotheses).encode()).hexdigest()
        known = folder.scored.get(text.pair)
        if known is not None and known.hypotheses_sha256 == digest and folder.has_texts(known):
            return known
        pieces = self.piece_bleu
        score = scoring.score_pair(text.pair, text.hypotheses, text.references, tier, text.more_references, pieces)
        score = replace(
            score, references=text.reference_file, altered_references=text.altered, untranslated=text.untranslated,
            left_out=text.left_out, hypotheses_sha256=digest,
        )  # fmt: skip
        by_sentence = {}
        if self.comet is not None:
            name, all_sources = self.comet.name, sources()
            found = self.comet([all_sources[number] for number in text.numbers], text.hypotheses, text.references)
            by_sentence, signatures = {name: found}, {name: self.comet.signature}
            score = replace(score, metrics={name: sum(found) / len(found)}, metric_signatures=signatures)
        folder.write_texts(score, text.hypotheses, [text.references, *text.more_references], by_sentence)
        return score


def translate_and_score(
    translator: Translator, pairs: Sequence[str], subset: str, tiers: dict[str, str], measures: Measures,
    folder: ScoreFolder, pivot: Pivot | None = None,
) -> list[PairScore]:  # fmt: skip
    """Translate, score and write the pairs one by one, with a progress bar over all sentences.

    `pivot` adds translations in two steps after the others.

    With COMET all pairs are translated before the first is scored: both models may not fit on one GPU.
    """
    from fairseq_mtmoe.evaluation.mixing import Mixture
    from fairseq_mtmoe.evaluation.test_sets import FAIRSEQ

    # Equality with fairseq-generate needs its batches: one pair each.
    mixture = None if translator.references == FAIRSEQ else Mixture(translator, pairs, subset)
    folder.begin()
    console = Console(stderr=True)
    results = []
    with progress_bar("sentences", console) as progress:
        done = sum(map(len, folder.known.values()))
        total = None if mixture is None else mixture.sentences + (0 if pivot is None else pivot.sentences)
        bar = progress.add_task("translating", total=total, completed=done)

        def note(batch: Batch) -> None:
            folder.note(batch)
            progress.advance(bar, sum(map(len, batch.values())))

        alone = (translator.translate(pair, subset, note, folder.known.get(pair, {})) for pair in pairs)
        texts = alone if mixture is None else mixture.translate(note, folder.known)
        del mixture  # it also holds references to the models
        if pivot is not None:
            texts = pivot.beside(texts, translator, subset, note, folder.known)
        if measures.comet is not None:
            texts = iter(list(texts))
            translator.release()
        for text in texts:
            sources = partial(translator.sources, text.direction, subset)
            score = measures.write(text, tiers.get(text.direction, ""), sources, folder)
            line = f"{score.pair}: BLEU {score.bleu:.2f}, chrF++ {score.chrf:.2f}, {score.sentences} sentences"
            say(["; ".join([line, *score.remarks])], console)
            results.append(score)
    return results


def show(scores: Scores, folder: Path) -> None:
    """Print the table of pairs and averages, and sacreBLEU's signatures."""
    Console().print(score_table(scores).on_screen())
    if scores.has_tiers:
        say([TIER_RULE])
    say(f"{signature}{pairs}" for signature, pairs in scores.signatures.items())
    files = [folder / name for name in (JSON_FILE, MARKDOWN_FILE, LATEX_FILE)]
    say(file for file in files if file.exists())  # before 0.1.8 there was no LaTeX


class NamedTiers:
    """Tiers by pair or language, in any spelling (UserError: the recipe or file is missing or names none)."""

    def __init__(self, name: str) -> None:
        if name.endswith(".json"):
            path, tiers = Path(name), read_tiers(Path(name))
        else:
            recipe = load_recipe(name, "--tiers")
            path, tiers = recipe.path, dict(recipe.tiers)
        if not any(tiers.values()):
            raise UserError(f"`--tiers` must be a recipe or a file with tiers, but {name} has none.")
        self.identity = f"{name} {hashlib.sha256(read_bytes(path)).hexdigest()[:8]}"
        self._tiers = {self._plain(member): tier for tier, members in tiers.items() for member in members}

    @staticmethod
    def _plain(name: str) -> str:
        return "-".join(map(plain_code, name.split("-")))

    def of(self, pairs: Sequence[str]) -> dict[str, str]:
        """Return the pairs' tiers: by the pair, else by its target, else by its source; unnamed pairs are left out."""
        names = [(pair, name) for pair in pairs for name in (*pair.split("-", 1), pair)]  # the last one counts
        return {pair: self._tiers[plain] for pair, name in names if (plain := self._plain(name)) in self._tiers}
