"""Answers of other kinds through the real commands: labels of words, rankings and spans are learned and written."""

import gzip
import json

import pytest
from seqeval.metrics import f1_score

from fairseq_mtmoe.data.nlu.answers import best
from tests.helpers.benchmark import (
    make_benchmark,
    make_encoder,
    make_questions,
    make_words_and_entities,
    task_arguments,
    validate,
    validated,
)
from tests.helpers.commands import run
from tests.helpers.training import run_here

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kinds")
    make_benchmark(folder, {"train": 200, "dev": 40})
    make_words_and_entities(folder, {"train": 200, "dev": 40})
    make_questions(folder, {"train": 200, "dev": 60})
    make_encoder(folder / "encoder.pt")
    return folder


# ---- words and rankings ----


def sentences(text):
    """The columns of each sentence."""
    return [[line.split("\t") for line in part.splitlines()] for part in text.removesuffix("\n").split("\n\n")]


def test_what_is_written_has_the_scores_of_a_validation_in_any_number_of_processes(data, tmp_path):
    """The sequences are so short that sentences lose words."""
    options = ("--glue-tasks", "record,wnut17", "--init-encoder", data / "encoder.pt", "--max-epoch", 8, "--lr", 0.005,
               "--max-positions", 11, "--arch", "mt_dense")  # fmt: skip
    run_here(task_arguments(data, tmp_path / "run", *options))
    checkpoint = tmp_path / "run" / "checkpoint_best.pt"
    figures = [
        validated(validate(data, checkpoint, "--batch-size", size, joined=processes))
        for processes, size in ((1, 16), (2, 5))
    ]
    names = ("record_text-f1", "record_exact-match", "wnut17_entity-f1", "all")
    one, two = ({name: found[name] for name in names} for found in figures)
    assert one == two
    assert one["record_text-f1"] >= 90 and one["wnut17_entity-f1"] >= 85, one
    run("mtmoe", "predict", data, "--path", checkpoint, "--subset", "valid", "--out", tmp_path / "out", "--cpu")

    right = sentences((data / "WNUT17" / "emerging.dev.conll").read_text(encoding="utf-8"))
    said = sentences((tmp_path / "out" / "wnut17.conll").read_text(encoding="utf-8"))
    assert [[word for word, _ in of] for of in said] == [[word for word, _ in of] for of in right]
    labels = [[[label for _, label in of] for of in whole] for whole in (right, said)]
    assert 100 * f1_score(*labels) == pytest.approx(one["wnut17_entity-f1"], abs=0.006)
    assert all(label == "O" for of in said for word, label in of if word == "\u200b")

    queries = [json.loads(line)["qas"][0] for line in (data / "ReCoRD" / "val.jsonl").read_text().splitlines()]
    written = [json.loads(line) for line in (tmp_path / "out" / "ReCoRD.jsonl").read_text().splitlines()]
    assert [line["idx"] for line in written] == [query["idx"] for query in queries]
    hits = [
        line["label"] in [answer["text"] for answer in query["answers"]]
        for line, query in zip(written, queries, strict=True)
    ]
    assert 100 * sum(hits) / len(hits) == pytest.approx(one["record_exact-match"], abs=0.006)


# ---- spans ----


@pytest.fixture(scope="module")
def run_folder(data, tmp_path_factory):
    """A run that has learned them beside CoLA, without a validation."""
    folder = tmp_path_factory.mktemp("run")
    options = ("--glue-tasks", "squad,cola", "--init-encoder", data / "encoder.pt", "--max-update", 250,
               "--lr", 0.005)  # fmt: skip
    run_here(task_arguments(data, folder, *options, "--sampling-method", "uniform", "--disable-validation"))
    return folder


@pytest.fixture(scope="module")
def figures(data, run_folder):
    return validated(validate(data, run_folder / "checkpoint_last.pt"))


def test_they_are_learned_beside_another_task(figures):
    assert figures["squad_f1"] >= 80 and figures["squad_em"] >= 50 and figures["cola_matthews"] >= 80, figures
    assert figures["squad_f1"] > figures["squad_em"] and figures["all"] == pytest.approx(
        (figures["squad_f1"] + figures["cola_matthews"]) / 2, abs=0.01
    )


@pytest.mark.rare
def test_several_processes_score_alike(data, run_folder, figures, tmp_path):
    """Four, of which each has some windows of a question."""
    options = ("--distributed-world-size", 4, "--batch-size", 3, "--results-path", tmp_path / "scores")
    found = validated(validate(data, run_folder / "checkpoint_last.pt", *options))
    names = ("squad_f1", "squad_em", "cola_matthews", "all")
    assert [found[name] for name in names] == [figures[name] for name in names]
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
