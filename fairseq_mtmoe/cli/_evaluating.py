"""What `mtmoe evaluate` does with one model, or with what fairseq-generate wrote: translate, score, write, show."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from fairseq_mtmoe.analysis import scores as scoring
from fairseq_mtmoe.analysis.score_files import JSON_FILE, LATEX_FILE, MARKDOWN_FILE, Scores
from fairseq_mtmoe.analysis.score_tables import score_table
from fairseq_mtmoe.analysis.scores import PairScore, PieceBleu
from fairseq_mtmoe.cli._quiet import progress_bar
from fairseq_mtmoe.cli._score_folder import ScoreFolder, as_file
from fairseq_mtmoe.data.corpora.recipes.recipe import load_recipe
from fairseq_mtmoe.data.corpora.recipes.schema import plain_code
from fairseq_mtmoe.data.translation.tiers import read_tiers
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import read_bytes

if TYPE_CHECKING:
    from fairseq_mtmoe.evaluation.comet import Comet
    from fairseq_mtmoe.evaluation.translator import Batch, Translation, Translator


@dataclass
class Measures:
    """What all pairs are scored with, besides BLEU and chrF++, as the command line says."""

    tiers: NamedTiers | None
    piece_bleu: PieceBleu | None
    comet_file: Path | None
    cpu: bool
    comet: Comet | None = None

    @property
    def settings(self) -> dict[str, object]:
        """What decides about scores, for a `ScoreFolder`."""
        from fairseq_mtmoe.evaluation.comet import signature_of

        return {
            "tiers": self.tiers and self.tiers.identity,
            "spm": self.piece_bleu and self.piece_bleu.name,
            "comet": self.comet_file and signature_of(self.comet_file),
        }

    def load(self) -> None:
        """Load COMET where it is asked for: once for all models, before the first translates."""
        from fairseq_mtmoe.evaluation.comet import Comet

        if self.comet_file is not None and self.comet is None:
            self.comet = Comet(self.comet_file, gpus=0 if self.cpu else None)

    def tiers_of(self, pairs: Sequence[str]) -> dict[str, str]:
        """The tiers that the command line gives to pairs."""
        return {} if self.tiers is None else self.tiers.of(pairs)

    def write(
        self, text: Translation, tier: str, sources: Callable[[], Sequence[str]], folder: ScoreFolder
    ) -> PairScore:
        """The scores of a pair, whose texts are then in the folder; an interrupted evaluation may have left both."""
        digest = hashlib.sha256(as_file(text.hypotheses).encode()).hexdigest()
        known = folder.scored.get(text.pair)
        if known is not None and known.hypotheses_sha256 == digest and folder.has_texts(known):
            return known
        score = scoring.score_pair(
            text.pair, text.hypotheses, text.references, tier, text.more_references, self.piece_bleu
        )
        score = replace(
            score,
            references=text.reference_file,
            altered_references=text.altered,
            untranslated=text.untranslated,
            left_out=text.left_out,
            hypotheses_sha256=digest,
        )
        by_sentence = {}
        if self.comet is not None:
            name, all_sources = self.comet.name, sources()
            found = self.comet([all_sources[number] for number in text.numbers], text.hypotheses, text.references)
            by_sentence = {name: found}
            mean, signature = sum(found) / len(found), self.comet.signature
            score = replace(score, metrics={name: mean}, metric_signatures={name: signature})
        folder.write_texts(score, text.hypotheses, [text.references, *text.more_references], by_sentence)
        return score


def translate_and_score(
    translator: Translator, pairs: Sequence[str], subset: str, tiers: dict[str, str], measures: Measures,
    folder: ScoreFolder,
) -> list[PairScore]:  # fmt: skip
    """Translate, score and write each pair as soon as it is there, with a progress bar over all sentences.

    With COMET all pairs are translated before the first is scored: two large models would not fit into a GPU.
    """
    from fairseq_mtmoe.evaluation.mixing import Mixture
    from fairseq_mtmoe.evaluation.test_sets import FAIRSEQ

    # What is to be exactly fairseq-generate's has its batches, too.
    mixture = None if translator.references == FAIRSEQ else Mixture(translator, pairs, subset)
    folder.begin()
    console = Console(stderr=True)
    results = []
    with progress_bar("sentences", console) as progress:
        done = sum(map(len, folder.known.values()))
        bar = progress.add_task("translating", total=None if mixture is None else mixture.sentences, completed=done)

        def note(batch: Batch) -> None:
            folder.note(batch)
            progress.advance(bar, sum(map(len, batch.values())))

        alone = (translator.translate(pair, subset, note, folder.known.get(pair, {})) for pair in pairs)
        texts = alone if mixture is None else mixture.translate(note, folder.known)
        del mixture  # its generators have the models, too
        if measures.comet is not None:
            texts = iter(list(texts))
            translator.release()
        for text in texts:
            sources = partial(translator.sources, text.pair, subset)
            score = measures.write(text, tiers.get(text.pair, ""), sources, folder)
            line = f"{score.pair}: BLEU {score.bleu:.2f}, chrF++ {score.chrf:.2f}, {score.sentences} sentences"
            console.print("; ".join([line, *score.remarks]), highlight=False, soft_wrap=True)
            results.append(score)
    return results


def show(scores: Scores, folder: Path) -> None:
    """Print the table of pairs and averages, and sacreBLEU's signatures."""
    console = Console()
    console.print(score_table(scores).on_screen())
    for signature, pairs in scores.signatures.items():
        console.print(f"{signature}{pairs}", soft_wrap=True, highlight=False, markup=False)
    for name in (JSON_FILE, MARKDOWN_FILE, LATEX_FILE):
        if (folder / name).exists():  # before 0.1.8 there was no LaTeX
            console.print(str(folder / name), soft_wrap=True, highlight=False, markup=False)


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
