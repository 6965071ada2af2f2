"""What `mtmoe evaluate` does with one model, or with what fairseq-generate wrote: translate, score, write, show."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fairseq_mtmoe.analysis import scores as scoring
from fairseq_mtmoe.analysis.score_files import JSON_FILE, LATEX_FILE, MARKDOWN_FILE, Scores
from fairseq_mtmoe.analysis.score_tables import score_table
from fairseq_mtmoe.analysis.scores import PairScore, PieceBleu
from fairseq_mtmoe.cli._score_folder import ScoreFolder, as_file
from fairseq_mtmoe.data.corpora.recipes.codes import plain_code
from fairseq_mtmoe.data.corpora.recipes.loading import load_recipe
from fairseq_mtmoe.data.translation.tiers import read_tiers
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import read_bytes

if TYPE_CHECKING:
    from fairseq_mtmoe.evaluation.comet import Comet
    from fairseq_mtmoe.evaluation.mixing import Mixture
    from fairseq_mtmoe.evaluation.translator import Batch, Translation, Translator


@dataclass(frozen=True)
class Measures:
    """What pairs are scored with, besides BLEU and chrF++."""

    tiers: Mapping[str, str] = field(default_factory=dict)
    piece_bleu: PieceBleu | None = None
    comet: Comet | None = None

    def score(
        self, text: Translation, sources: Callable[[], Sequence[str]]
    ) -> tuple[PairScore, dict[str, list[float]]]:
        """The scores of a pair, and those of its sentences by the metrics that have such."""
        from fairseq_mtmoe.evaluation.comet import NAME

        score = scoring.score_pair(
            text.pair, text.hypotheses, text.references, self.tiers.get(text.pair, ""), text.more_references,
            self.piece_bleu,
        )  # fmt: skip
        score = replace(
            score,
            references=text.reference_file,
            altered_references=text.altered,
            untranslated=text.untranslated,
            left_out=text.left_out,
            hypotheses_sha256=_digest(text),
        )
        if self.comet is None:
            return score, {}
        all_sources = sources()
        found = self.comet([all_sources[number] for number in text.numbers], text.hypotheses, text.references)
        mean = sum(found) / len(found)
        return replace(score, metrics={NAME: mean}, metric_signatures={NAME: self.comet.signature}), {NAME: found}


def translate_and_score(
    translator: Translator, pairs: Sequence[str], subset: str, measures: Measures, folder: ScoreFolder
) -> list[PairScore]:
    """Translate, score and write each pair as soon as it is there, with a progress bar over all sentences.

    With COMET all pairs are translated before the first is scored: two large models would not fit into a GPU.
    """
    from fairseq_mtmoe.evaluation.mixing import Mixture
    from fairseq_mtmoe.evaluation.references import FAIRSEQ

    # What is to be exactly fairseq-generate's has its batches, too.
    mixture = None if translator.references == FAIRSEQ else Mixture(translator, pairs, subset)
    folder.begin()
    console = Console(stderr=True)
    results = []
    with _progress(console) as progress:
        done = sum(map(len, folder.known.values()))
        bar = progress.add_task("translating", total=None if mixture is None else mixture.sentences, completed=done)

        def note(batch: Batch) -> None:
            folder.note(batch)
            progress.advance(bar, sum(map(len, batch.values())))

        texts = _texts(translator, mixture, pairs, subset, note, folder.known)
        del mixture  # its generators have the models, too
        if measures.comet is not None:
            texts = iter(list(texts))
            translator.release()
        for text in texts:
            sources = (lambda pair: lambda: translator.sources(pair, subset))(text.pair)
            score = write_scored(text, measures, sources, folder)
            console.print(_line(score), highlight=False, soft_wrap=True)
            results.append(score)
    return results


def _texts(
    translator: Translator,
    mixture: Mixture | None,
    pairs: Sequence[str],
    subset: str,
    note: Callable[[Batch], None],
    known: Mapping[str, Mapping[int, str]],
) -> Iterator[Translation]:
    if mixture is not None:
        return mixture.translate(note, known)
    return (translator.translate(pair, subset, note, known.get(pair, {})) for pair in pairs)


def write_scored(
    text: Translation, measures: Measures, sources: Callable[[], Sequence[str]], folder: ScoreFolder
) -> PairScore:
    """The scores of a pair, whose texts are then in the folder; an interrupted evaluation may have left both."""
    known = folder.scored.get(text.pair)
    if known is not None and known.hypotheses_sha256 == _digest(text) and folder.has_texts(known):
        return known
    score, by_sentence = measures.score(text, sources)
    folder.write_texts(score, text.hypotheses, [text.references, *text.more_references], by_sentence)
    return score


def _digest(text: Translation) -> str:
    return hashlib.sha256(as_file(text.hypotheses).encode()).hexdigest()


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("sentences"),
               TimeElapsedColumn(), TimeRemainingColumn())  # fmt: skip
    return Progress(*columns, console=console, disable=not console.is_terminal)


def show(scores: Scores, folder: Path) -> None:
    """Print the table of pairs and averages, and sacreBLEU's signatures."""
    console = Console()
    console.print(score_table(scores).on_screen())
    for signature, pairs in scores.signatures.items():
        console.print(f"{signature}{pairs}", soft_wrap=True, highlight=False, markup=False)
    for name in (JSON_FILE, MARKDOWN_FILE, LATEX_FILE):
        if (folder / name).exists():  # before 0.1.8 there was no LaTeX
            console.print(str(folder / name), soft_wrap=True, highlight=False, markup=False)


def _line(score: PairScore) -> str:
    line = f"{score.pair}: BLEU {score.bleu:.2f}, chrF++ {score.chrf:.2f}, {score.sentences} sentences"
    return "; ".join([line, *score.remarks])


class NamedTiers:
    """Tiers by pair or language, in any spelling of their codes.

    Attributes:
        identity: the name, with a digest of what it stands for.

    Raises:
        UserError: there is no such recipe or file, or it names no tier.
    """

    def __init__(self, name: str) -> None:
        if name.endswith(".json"):
            path, tiers = Path(name), read_tiers(Path(name))
        else:
            recipe = load_recipe(name)
            path, tiers = recipe.path, dict(recipe.tiers)
        if not any(tiers.values()):
            raise UserError(f"`--tiers` must be a recipe or a file that names tiers, but {name} does not.")
        self.identity = f"{name} {hashlib.sha256(read_bytes(path)).hexdigest()[:8]}"
        self._tiers = {_plain(member): tier for tier, members in tiers.items() for member in members}

    def of(self, pairs: Sequence[str]) -> dict[str, str]:
        """The tiers of those pairs that it names: by the pair, else by its target, else by its source."""
        found = {}
        for pair in pairs:
            source, _, target = pair.partition("-")
            names = [_plain(name) for name in (pair, target, source)]
            tier = next((self._tiers[name] for name in names if name in self._tiers), None)
            if tier is not None:
                found[pair] = tier
        return found


def _plain(name: str) -> str:
    return "-".join(map(plain_code, name.split("-")))
