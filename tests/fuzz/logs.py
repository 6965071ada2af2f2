"""Run logs, scores and journals in which one value is another, or some bytes are."""

from __future__ import annotations

import json
import math
import random
import shutil
import zlib
from pathlib import Path
from typing import Any

from fairseq_mtmoe.analysis import run_log
from fairseq_mtmoe.analysis.score_files import scores_of_tasks
from fairseq_mtmoe.analysis.score_tables import write_scores
from fairseq_mtmoe.analysis.scores import PairScore
from fairseq_mtmoe.cli._evaluating import JOURNAL, ScoreFolder
from tests.fuzz.commands import mtmoe
from tests.fuzz.harness import Reader
from tests.fuzz.odd_values import ODD, replace_one
from tests.golden.old_runs import OLD
from tests.helpers.benchmark_scores import set_of, task_of
from tests.helpers.evaluations import write_evaluation

_SETTINGS = {"checkpoint_sha256": "1", "data_sha256": "2", "beam": 5}
_SCORE = PairScore("en-de", "high", 2, 31.5, 50.0, "nrefs:1", "nrefs:1", spbleu=30.0, spbleu_signature="x",
                   metrics={"COMET": 0.8}, metric_signatures={"COMET": "x"})  # fmt: skip
_JSON = tuple(value for value in ODD if not (isinstance(value, dict) and 0 in value))


def _make_log(draw: random.Random, folder: Path) -> None:
    lines = [json.loads(line) for line in (OLD / "sparse" / run_log.FILE_NAME).read_text().splitlines()]
    kinds = {event["event"]: number for number, event in enumerate(lines)}
    for _ in range(draw.choice((1, 1, 2))):
        replace_one(draw, lines[draw.choice(list(kinds.values()))], _JSON)
    _write(draw, folder / "run" / run_log.FILE_NAME, "\n".join(map(_text, lines)) + "\n")


def _read_log(folder: Path, draw: random.Random) -> None:
    if draw.random() < 0.5:
        return mtmoe("plot", folder / "run", "--out", folder / "plots")
    return mtmoe("report", folder / "run", folder / "page.html")


def _make_scores(draw: random.Random, folder: Path) -> None:
    for name in ("a", "b"):
        write_evaluation(folder / name, 0.3, seed=ord(name), sentences=4)
        path = folder / name / "scores.json"
        if draw.random() < 0.4:
            for text in folder.glob(f"{name}/*"):
                text.unlink()
            task = task_of("rte", set_of(50.0, also={"f1": (40.0, 2.0)}), group="glue")
            write_scores(folder / name, scores_of_tasks(task, {"checkpoint": "c.pt", "seed": 1, "subset": "valid"}))
    content = json.loads(path.read_text())
    replace_one(draw, content, _JSON)
    _write(draw, path, _text(content))


def _read_scores(folder: Path, draw: random.Random) -> None:
    way = draw.choice(("compare", "means", "report"))
    if way == "report":
        shutil.copytree(OLD / "sparse", folder / "run")
        return mtmoe("report", folder / "run", folder / "page.html", "--scores", folder / "b")
    named = (folder / "a", folder / "b") if way == "compare" else (f"x={folder}/a", f"y={folder}/b")
    return mtmoe("compare", *named, "--out", folder / "out")


def _make_journal(draw: random.Random, folder: Path) -> None:
    score = {"pair": "en-de", **json.loads(json.dumps(_SCORE.fields))}
    notes: list[Any] = [{"settings": dict(_SETTINGS)}, {"batch": {"en-de": {"0": "x", "1": "y"}}}, {"score": score}]
    replace_one(draw, notes, _JSON)
    lines = [_text(note).encode() for note in notes]
    (folder / JOURNAL).write_bytes(b"".join(b"%08x %s\n" % (zlib.crc32(line), line) for line in lines))


def _read_journal(folder: Path, draw: random.Random) -> None:
    scores = ScoreFolder(folder, _SETTINGS, overwrite=True)
    scores.finished()
    scores.begin()
    assert all(isinstance(text, str) for texts in scores.known.values() for text in texts.values())
    for pair, score in scores.scored.items():
        scores.has_texts(score)
        assert isinstance(pair, str) and math.isfinite(score.bleu)
    scores.write_scores(list(scores.scored.values()) or [_SCORE])


def _text(value: Any) -> str:
    """JSON with what Python's own cannot write: numbers of thousands of digits."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))}: {_text(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_text, value)) + "]"
    return "1" * 5001 if isinstance(value, int) and value > 2**100 else json.dumps(value)


def _write(draw: random.Random, path: Path, text: str) -> None:
    """Now and then with some bytes changed."""
    content = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(draw.choice((0, 0, 0, 1, 4))):
        content[draw.randrange(len(content))] = draw.randrange(256)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)


def readers() -> list[Reader]:
    return [
        Reader("run log", _make_log, _read_log),
        Reader("scores", _make_scores, _read_scores),
        Reader("journal", _make_journal, _read_journal),
    ]
