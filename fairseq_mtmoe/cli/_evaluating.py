"""Steps of `mtmoe evaluate` for one model: translate, score, write, show."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from fairseq_mtmoe import __version__
from fairseq_mtmoe.checkpoints import checksum
from fairseq_mtmoe.cli._shared import as_file, progress_bar, say
from fairseq_mtmoe.core.digest import digest_of, digest_of_file
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import check_writable, read_bytes, read_json, write_text
from fairseq_mtmoe.core.tiers import read_tiers
from fairseq_mtmoe.corpora.recipes.codes import plain_code
from fairseq_mtmoe.corpora.recipes.from_yaml import load_recipe
from fairseq_mtmoe.report import score_files
from fairseq_mtmoe.report import scores as scoring
from fairseq_mtmoe.report.score_files import (
    JSON_FILE,
    LATEX_FILE,
    MARKDOWN_FILE,
    Scores,
    scores_of_pairs,
)
from fairseq_mtmoe.report.score_tables import remove_scores, score_table, write_scores
from fairseq_mtmoe.report.scores import PairScore, PieceBleu, score_of
from fairseq_mtmoe.translation.decode import test_sets
from fairseq_mtmoe.translation.decode.comet import Comet, signature_of
from fairseq_mtmoe.translation.decode.decode import Decoding
from fairseq_mtmoe.translation.decode.translator import Translation, Translator

UNFINISHED = "unfinished.json"  # the settings and scores of an interrupted evaluation

_KINDS = ("hyp", "ref", "ref[0-9]*", "comet")  # of files with a pair's texts or figures
_PATHS = ("checkpoint", "data")  # not compared: the files' digests are
_DIGESTS = {"checkpoint_sha256": "another checkpoint", "data_sha256": "other data"}


class ScoreFolder:
    """Output folder of one evaluation, created with its first result.

    An interrupted evaluation leaves `unfinished`, scores by pair, beside the texts of these pairs.
    """

    def __init__(self, folder: Path, settings: Mapping[str, object], overwrite: bool) -> None:
        self.folder = folder
        self.settings: dict[str, object] = json.loads(json.dumps(settings))
        self.unfinished: dict[str, PairScore] = {}
        self._overwrite = overwrite
        self._before: Mapping[str, PairScore] = {}

    def finished(self) -> Scores | None:
        """Return the folder's scores if they are whole and of these settings, else None.

        Raises:
            UserError: the folder has other results and may not be overwritten, or is not writable.
        """
        if (self.folder / JSON_FILE).exists():
            try:
                scores = score_files.scores_in(
                    read_json(self.folder / JSON_FILE, "scores of mtmoe evaluate")
                )
            except ValueError:
                scores = Scores([], {}, {})
            self._before = scores.pairs
            differing = self._differing(scores.settings)
            has_texts = all(map(self.has_texts, scores.pairs.values()))
            is_whole = has_texts and (self.folder / MARKDOWN_FILE).is_file()
            if not differing and is_whole:
                return scores
            self._refuse("the scores", differing)
        elif (self.folder / UNFINISHED).exists():
            self._read_unfinished()
        else:  # texts without scores may be another program's
            texts = list(self._texts("*-*"))
            if texts and not self._overwrite:
                raise UserError(
                    f"`{self.folder}` contains {texts[0].name}, but no scores; give another folder "
                    "as --out, or --overwrite to replace it."
                )
        check_writable(self.folder)
        return None

    def _read_unfinished(self) -> None:
        path = self.folder / UNFINISHED
        content = read_json(path, "an unfinished evaluation")
        try:
            settings = content["settings"]
            scores = [
                score_of({"pair": pair, **fields}) for pair, fields in content["pairs"].items()
            ]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"`{path}` does not belong to an unfinished evaluation; remove it."
            ) from error
        differing = self._differing(settings)
        self._refuse("an unfinished evaluation", differing)
        self._before = {score.pair: score for score in scores}
        if not differing:
            self.unfinished = {score.pair: score for score in scores if self.has_texts(score)}

    def write_texts(
        self,
        score: PairScore,
        hypotheses: Sequence[str],
        references: Sequence[Sequence[str]],
        by_sentence: Mapping[str, Sequence[float]],
    ) -> None:
        """Write one pair's compared texts, then its scores.

        Older scores are removed first.
        """
        remove_scores(self.folder)
        self._note()
        self._remove_texts(score.pair)
        for number, lines in enumerate(references):
            write_text(self.folder / f"{score.pair}.ref{number or ''}", as_file(lines))
        for name, figures in by_sentence.items():
            write_text(self.folder / f"{score.pair}.{name.lower()}", as_file(map(repr, figures)))
        write_text(self.folder / f"{score.pair}.hyp", as_file(hypotheses))
        self.unfinished[score.pair] = score
        self._note()

    def _note(self) -> None:
        scores = {pair: scored.fields for pair, scored in self.unfinished.items()}
        write_text(
            self.folder / UNFINISHED, json.dumps({"settings": self.settings, "pairs": scores})
        )

    def has_texts(self, score: PairScore) -> bool:
        """Return whether a pair's texts exist and are those that were scored."""
        references = map("ref{}".format, range(1, 1 + score.more_references))
        kinds = ("hyp", "ref", *references, *map(str.lower, score.metrics))
        files = [self.folder / f"{score.pair}.{kind}" for kind in kinds]
        if not all(map(Path.is_file, files)):
            return False
        return score.hypotheses_sha256 == digest_of_file(files[0])

    def write_scores(self, results: Sequence[PairScore]) -> Scores:
        """Write the scores of all pairs; remove the texts of pairs without scores."""
        for pair in self._before.keys() - {result.pair for result in results}:
            self._remove_texts(pair)
        scores = scores_of_pairs(results, self.settings)
        write_scores(self.folder, scores)
        (self.folder / UNFINISHED).unlink(missing_ok=True)
        return scores

    def _texts(self, pair: str) -> Iterator[Path]:
        return chain.from_iterable(self.folder.glob(f"{pair}.{kind}") for kind in _KINDS)

    def _remove_texts(self, pair: str) -> None:
        for path in self._texts(pair):
            path.unlink()

    def _refuse(self, what: str, differing: Sequence[str]) -> None:
        if differing and not self._overwrite:
            otherwise = "give another folder as --out, or --overwrite to replace them"
            raise UserError(
                f"`{self.folder}` contains {what} of {', '.join(differing)}; {otherwise}."
            )

    def _differing(self, settings: Mapping[str, object]) -> list[str]:
        """Return descriptions of the settings that differ from the folder's."""
        differing = []
        for name in {**settings, **self.settings}:
            before = settings.get(name)
            now = self.settings.get(name)
            if before != now and name not in _PATHS:
                differing.append(_DIGESTS.get(name, f"{name} {before} (now {now})"))
        return differing


def digest_of_data(folder: Path, subset: str) -> str:
    """Return a SHA-256 of the data directory's files that affect a subset's scores."""
    patterns = (f"{subset}.*", f"raw/{subset}.*", "dict.*.txt", "tiers.json", "spm.model")
    digest = hashlib.sha256()
    for path in sorted(chain.from_iterable(map(folder.glob, patterns))):
        if path.is_file():
            digest.update(f"{path.relative_to(folder)}\0".encode())
            digest.update(bytes.fromhex(digest_of_file(path)))
    return digest.hexdigest()


@dataclass(frozen=True)
class Evaluation:
    """A test set with what translates and scores it.

    `settings` are the command's options of the search, the pairs and the texts.
    """

    data: str
    subset: str
    settings: Mapping[str, Any]
    tiers: NamedTiers | None
    piece_bleu: PieceBleu | None
    comet: Comet | None

    def scores(self, checkpoints: Sequence[str], folder: ScoreFolder) -> Scores:
        """Translate, score and write all pairs, with a progress bar over the sentences.

        With COMET all pairs are translated before the first is scored: both models may not fit on
        one GPU.

        Args:
            checkpoints: a model, or several as an ensemble.
            folder: where to write.
        """
        settings = self.settings
        translator = Translator(
            self.data,
            checkpoints,
            Decoding.of(settings),
            settings["post_process"],
            settings["references"],
        )
        sizes = test_sets.sizes_of(self.data, self.subset)
        pairs = test_sets.choose_pairs(sizes, translator.trained_pairs, settings["lang_pairs"])
        tiers = test_sets.tiers_of(self.data, [*translator.trained_pairs, *pairs])
        if self.tiers is not None:
            tiers |= self.tiers.of(pairs)
        folder.finished()  # another command may have written there since the first check
        scores = {pair: score for pair, score in folder.unfinished.items() if pair in pairs}
        left = [pair for pair in pairs if pair not in scores]
        console = Console(stderr=True)
        with progress_bar("sentences", console) as progress:
            counts = [test_sets.size_of(pair, sizes) or 0 for pair in [*scores, *left]]
            done = sum(counts[: len(scores)])
            bar = progress.add_task("translating", total=sum(counts), completed=done)
            texts = translator.translations(left, self.subset, partial(progress.advance, bar))
            if self.comet is not None:
                texts = iter(list(texts))
                translator.release()
            for text in texts:
                score = self._score(text, tiers.get(text.pair, ""), translator, folder)
                line = (
                    f"{score.pair}: BLEU {score.bleu:.2f}, chrF++ {score.chrf:.2f}, "
                    f"{score.sentences} sentences"
                )
                say(["; ".join([line, *score.remarks])], console)
                scores[text.pair] = score
                if text.untranslated:
                    progress.advance(bar, text.untranslated)
        return folder.write_scores([scores[pair] for pair in pairs])

    def _score(
        self, text: Translation, tier: str, translator: Translator, folder: ScoreFolder
    ) -> PairScore:
        """Return a pair's scores; write them with its texts."""
        references = text.references
        score = scoring.score_pair(
            text.pair, text.hypotheses, references.lines, tier, references.more, self.piece_bleu
        )
        by_sentence: dict[str, Sequence[float]] = {}
        if self.comet is not None:
            sources = translator.sources(text.pair, self.subset)
            chosen = [sources[number] for number in text.numbers]
            figures = self.comet(chosen, text.hypotheses, references.lines)
            by_sentence[self.comet.name] = figures
            score = replace(
                score,
                metrics={self.comet.name: sum(figures) / len(figures)},
                metric_signatures={self.comet.name: self.comet.signature},
            )
        score = replace(
            score,
            references=references.file,
            altered_references=references.altered,
            untranslated=text.untranslated,
            hypotheses_sha256=digest_of(as_file(text.hypotheses)),
        )
        folder.write_texts(
            score, text.hypotheses, [references.lines, *references.more], by_sentence
        )
        return score


def evaluate(
    data: str,
    models: Mapping[Path, str],
    subset: str,
    overwrite: bool,
    settings: Mapping[str, Any],
) -> None:
    """Score models, by their output folders, or show their scores again."""
    test_sets.sizes_of(data, subset)  # raises if DATA has no such subset
    # Loaded first, so that errors come before any translation.
    named = None if settings["tiers"] is None else NamedTiers(settings["tiers"])
    pieces = settings["spm"] and PieceBleu(settings["spm"])
    comet = settings["comet"]
    decided = {
        "data": data,
        "subset": subset,
        **asdict(Decoding.of(settings)),
        "references": settings["references"],
        "lang_pairs": settings["lang_pairs"],
        "post_process": settings["post_process"],
        "tiers": named and named.identity,
        "spm": pieces and pieces.name,
        "comet": comet and signature_of(comet),
        "version": __version__,
        "data_sha256": digest_of_data(test_sets.folders(data)[0], subset),
    }
    folders = []
    for path, model in models.items():
        digests = list(map(checksum.identity, model.split(":")))
        files = {"checkpoint": model, "checkpoint_sha256": digests}
        folders.append(ScoreFolder(path, {**files, **decided}, overwrite))
    finished = [folder.finished() for folder in folders]
    scorer = None
    if comet is not None and None in finished:
        scorer = Comet(comet, settings["cpu"])
    evaluation = Evaluation(data, subset, settings, named, pieces, scorer)
    for model, folder, scores in zip(models.values(), folders, finished, strict=True):
        if scores is None:
            scores = evaluation.scores(model.split(":"), folder)
        else:
            click.echo(
                f"{folder.folder} has the scores of this model, data and settings already.",
                err=True,
            )
        show(scores, folder.folder)


def show(scores: Scores, folder: Path) -> None:
    """Print the table of pairs and averages, and sacreBLEU's signatures."""
    Console().print(score_table(scores).on_screen())
    say(f"{signature}{pairs}" for signature, pairs in scores.signatures.items())
    say(folder / name for name in (JSON_FILE, MARKDOWN_FILE, LATEX_FILE))


class NamedTiers:
    """Tiers by pair or language, in any spelling.

    Raises:
        UserError: the recipe or file is missing or names none.
    """

    def __init__(self, name: str) -> None:
        if name.endswith(".json"):
            path = Path(name)
            tiers = read_tiers(path)
        else:
            recipe = load_recipe(name, "--tiers")
            path = recipe.path
            tiers = dict(recipe.tiers)
        if not any(tiers.values()):
            raise UserError(
                f"`--tiers` must be a recipe or a file with tiers, but {name} has none."
            )
        self.identity = f"{name} {digest_of(read_bytes(path))[:8]}"
        self._tiers: dict[str, str] = {}
        for tier, members in tiers.items():
            self._tiers |= dict.fromkeys(map(_plain, members), tier)

    def of(self, pairs: Sequence[str]) -> dict[str, str]:
        """Return the pairs' tiers: by the pair, else by its target, else by its source.

        Unnamed pairs are left out.
        """
        tiers = {}
        for pair in pairs:
            for name in (*pair.split("-", 1), pair):  # the last one counts
                tier = self._tiers.get(_plain(name))
                if tier is not None:
                    tiers[pair] = tier
        return tiers


def _plain(name: str) -> str:
    return "-".join(map(plain_code, name.split("-")))
