"""Facts of made-up runs for tests of the page, of any size, and of runs full of hostile texts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_mtmoe.analysis.report.gathering import Facts, Gatherer, Sample, ScoresOfRun, run_report
from fairseq_mtmoe.analysis.rows import Row, run_of
from fairseq_mtmoe.analysis.score_files import NOW, Scores
from tests.helpers.corpus_reports import HOSTILE as LINES
from tests.helpers.evaluations import write_evaluation
from tests.helpers.figure_logs import translation
from tests.helpers.run_logs import events_of_a_run, language_pairs, write_run

HOSTILE = [
    *(line.replace("\ud800", "").replace("\x00", "") for line in LINES),
    "</script><script>window.owned = 1</script>",
    "<img src='https://example.org/x' onerror='window.owned = 1'>",
    "<!--<script>window.owned = 1",
    "{a|b} {b} {@[1]} ${window.owned = 1} `;window.owned = 1//",
    "__proto__",
    "line\u2028line\u2029line\nline",
]
ADDED = ("gates", "sources", "selection", "expert_comm", "sparsified")


def made_up_facts(pairs: int = 3, updates: int = 1000, runs: int = 1, samples: int = 2, **options: Any) -> Facts:
    """Runs from English to so many languages, with a validation every 500 updates or, of long runs, 200 in all."""
    names = language_pairs(pairs)
    validations, train_events = min(200, max(2, updates // 500)), min(2000, max(2, updates // 50))
    found = []
    for number in range(1, runs + 1):
        events = events_of_a_run(pairs, updates, validations=validations, train_events=train_events, **options)
        draw = random.Random(number)
        rows = [Row("", "pair", metric, NOW, np.array([draw.uniform(5, 40)]), pair, n=1000, stderr=0.5)
                for pair in names for metric in ("BLEU", "chrF++")]  # fmt: skip
        texts = [Sample(pair, line, f"A sentence {line} of {pair} & its like.", (f"Ein Satz {line} von {pair}.",),
                        f"Ein Satz {line} « {pair}.") for pair in names for line in range(1, samples + 1)]  # fmt: skip
        scores = ScoresOfRun(Scores([], {}, {}, {"subset": "test"}), rows, texts)
        found.append(run_report(run_of(events, f"run-{number}"), scores))
    made = {"version": "0.1.12", "commit": "0123abc", "date": "2026-11-23T06:00:00+00:00"}
    return Facts(made, None, found, [], [])


def read_facts(folder: Path, runs: int = 2, hostile: bool = False) -> Facts:
    """Of folders with run logs that have everything, and with evaluations, which are compared.

    `hostile`: every name and text is an attack, each another one.
    """
    made = []
    for number in range(runs):
        events = events_of_a_run(pairs=4, updates=4000, validations=8)
        events += [event for event in translation() if event["event"] in ADDED]
        path = write_run(folder / f"run-{number}", [_attack(event) for event in events] if hostile else events)
        write_evaluation(path / "scores", 0.2 + 0.2 * number, number, sentences=20)
        made.append(path)
    facts = Gatherer(made).gather()
    for run in facts.runs if hostile else ():
        run.name = _attack(run.name)
        run.notes[:] = [_attack(note) for note in run.notes]
        run.scores.samples[:] = [
            Sample(one.pair, one.line, _attack("source"), tuple(map(_attack, one.references)), _attack(one.hypothesis))
            for one in run.scores.samples
        ]
    return facts


def _attack(value: Any, name: str = "") -> Any:
    """The same text always becomes the same attack, so that names still agree."""
    match value:
        case str() if name not in ("event", "subset", "started", "task_ids", "sampling_method"):
            return f"{value}{random.Random(value).choice(HOSTILE)}"
        case dict() if name == "layers":
            return {_attack(key): one for key, one in value.items()}
        case dict() if name in ("pairs", "sizes", "probabilities", "options", "trained", "relative_entropy"):
            return {_attack(key): _attack(one) for key, one in value.items()}
        case dict() if name not in ("all", "tiers"):
            return {key: _attack(one, key) for key, one in value.items()}
        case list():
            return [_attack(one, name) for one in value]
    return value
