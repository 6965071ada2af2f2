"""Questions about passages through the real commands: they are learned beside other tasks, scored and written down."""

import gzip
import json

import pytest

from fairseq_mtmoe.data.nlu.answers import best
from tests.helpers.benchmark import make_benchmark, make_encoder, make_questions, train_tasks, validate, validated
from tests.helpers.commands import run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("questions")
    make_benchmark(folder, {"train": 200, "dev": 40})
    make_questions(folder, {"train": 200, "dev": 60})
    make_encoder(folder / "encoder.pt")
    return folder


@pytest.fixture(scope="module")
def run_folder(data, tmp_path_factory):
    """A run that has learned them beside CoLA, without a validation."""
    folder = tmp_path_factory.mktemp("run")
    options = ("--glue-tasks", "squad,cola", "--init-encoder", data / "encoder.pt", "--max-update", 450)
    train_tasks(data, folder, *options, "--sampling-method", "uniform", "--disable-validation")
    return folder


@pytest.fixture(scope="module")
def figures(data, run_folder):
    return validated(validate(data, run_folder / "checkpoint_last.pt"))


def test_they_are_learned_beside_another_task(figures):
    assert figures["squad_f1"] >= 80 and figures["squad_em"] >= 60 and figures["cola_matthews"] >= 80, figures
    assert figures["squad_f1"] > figures["squad_em"] and figures["all"] == pytest.approx(
        (figures["squad_f1"] + figures["cola_matthews"]) / 2, abs=0.01
    )


@pytest.mark.rare
def test_several_processes_score_alike(data, run_folder, figures, tmp_path):
    """Four, of which each has some windows of a question."""
    options = ("--distributed-world-size", 4, "--batch-size", 3, "--results-path", tmp_path / "scores")
    found = validated(validate(data, run_folder / "checkpoint_last.pt", *options))
    for name in ("squad_f1", "squad_em", "cola_matthews", "all"):
        assert found[name] == figures[name]
    (scores,) = json.loads((tmp_path / "scores" / "scores.json").read_text())["tasks"]["squad"]["sets"].values()
    assert scores["examples"] == 60 and round(scores["score"], 2) == figures["squad_f1"]


def test_what_is_written_has_these_scores(data, run_folder, figures, tmp_path):
    """By SQuAD's rules, of the text as the passage has it."""
    run("mtmoe", "predict", data, "--path", run_folder / "checkpoint_last.pt", "--subset", "valid", "--cpu",
        "--batch-size", 7, "--out", tmp_path / "out")  # fmt: skip
    answers = json.loads((tmp_path / "out" / "squad.json").read_text())
    lines = gzip.decompress((data / "MRQA/dev/SQuAD.jsonl.gz").read_bytes()).decode().splitlines()[1:]
    asked = {one["qid"]: (one, record["context"]) for record in map(json.loads, lines) for one in record["qas"]}
    assert list(answers) == list(asked)
    assert all(answers[key] in context for key, (_, context) in asked.items())
    for name in ("f1", "em"):
        scores = [best(name, answers[key], one["answers"]) for key, (one, _) in asked.items()]
        assert round(100 * sum(scores) / len(scores), 2) == figures[f"squad_{name}"]
    assert any(answer != answer.lower() for answer in answers.values())
