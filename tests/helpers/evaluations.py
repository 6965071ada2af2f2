"""Folders of `mtmoe evaluate`, with texts that systems of different strength might have written."""

import random
from pathlib import Path

from fairseq_mtmoe.report.score_files import scores_of_pairs
from fairseq_mtmoe.report.score_tables import write_scores
from fairseq_mtmoe.report.scores import score_pair

WORDS = ["Haus", "der", "kleine", "Baum", "steht", "nicht", "auf", "dem", "Hügel", "sie", "gehen", "weit", "fort", "."]
TIERS = {"en-de": "high", "en-fr": "high", "en-gu": "low"}


def references(pair: str, sentences: int) -> list[str]:
    rng = random.Random(pair)
    return [" ".join(rng.choices(WORDS, k=rng.randint(4, 12))) for _ in range(sentences)]


def hypotheses(pair: str, sentences: int, wrong: float, seed: int) -> list[str]:
    """The references with so large a share of other words."""
    rng = random.Random(f"{pair} {seed}")
    return [
        " ".join(rng.choice(WORDS) if rng.random() < wrong else word for word in line.split())
        for line in references(pair, sentences)
    ]


def write_evaluation(
    folder: Path, wrong: float, seed: int = 1, sentences: int = 60, pairs: dict[str, str] = TIERS
) -> Path:
    rows = []
    folder.mkdir(parents=True, exist_ok=True)
    for pair, tier in pairs.items():
        texts = {"hyp": hypotheses(pair, sentences, wrong, seed), "ref": references(pair, sentences)}
        rows.append(score_pair(pair, texts["hyp"], texts["ref"], tier))
        for suffix, lines in texts.items():
            (folder / f"{pair}.{suffix}").write_text("".join(f"{line}\n" for line in lines))
    settings = {"checkpoint": f"{folder.name}/checkpoint_best.pt", "subset": "test", "references": "text"}
    write_scores(folder, scores_of_pairs(rows, settings))
    return folder
