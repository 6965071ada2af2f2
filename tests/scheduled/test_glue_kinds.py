"""Answers of other kinds through the real commands: labels of words, rankings and spans are learned and written."""

import gzip
import json

import pytest
from seqeval.metrics import f1_score

from fairseq_mtmoe.nlu.data.answers import best
from tests.helpers import benchmark
from tests.helpers.benchmark import task_arguments, validate, validated
from tests.helpers.invoked import mtmoe
from tests.helpers.training import run_here


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kinds")
    benchmark.make_benchmark(folder, {"train": 200, "dev": 40})
    benchmark.make_words_and_entities(folder, {"train": 200, "dev": 40})
    benchmark.make_questions(folder, {"train": 200, "dev": 60})
    benchmark.make_encoder(folder / "encoder.pt")
    return folder


# ---- words and rankings ----


def sentences(text):
    return [[line.split("\t") for line in part.splitlines()] for part in text.removesuffix("\n").split("\n\n")]


def test_what_one_process_writes_has_the_scores_of_a_validation_in_two(data, tmp_path):
    """The sequences are so short that sentences lose words."""
    options = ("--glue-tasks", "record,wnut17", "--init-encoder", data / "encoder.pt", "--max-epoch", 8, "--lr", 0.005,
               "--max-positions", 11, "--arch", "mt_dense")  # fmt: skip
    run_here(task_arguments(data, tmp_path / "run", *options))
    checkpoint = tmp_path / "run" / "checkpoint_best.pt"
    figures = validated(validate(data, checkpoint, "--batch-size", 5))
    assert figures["record_text-f1"] >= 90 and figures["wnut17_entity-f1"] >= 85, figures
    mtmoe("predict", data, "--path", checkpoint, "--subset", "valid", "--out", tmp_path / "out", "--cpu")
    right = sentences((data / "WNUT17" / "emerging.dev.conll").read_text(encoding="utf-8"))
    said = sentences((tmp_path / "out" / "wnut17.conll").read_text(encoding="utf-8"))
    labels = [[[label for _, label in of] for of in whole] for whole in (right, said)]
    assert 100 * f1_score(*labels) == pytest.approx(figures["wnut17_entity-f1"], abs=0.006)
    assert all(label == "O" for of in said for word, label in of if word == "\u200b")
    queries = [json.loads(line)["qas"][0] for line in (data / "ReCoRD" / "val.jsonl").read_text().splitlines()]
    written = [json.loads(line) for line in (tmp_path / "out" / "ReCoRD.jsonl").read_text().splitlines()]
    right = [[answer["text"] for answer in query["answers"]] for query in queries]
    hits = [line["label"] in texts for line, texts in zip(written, right, strict=True)]
    for name in ("record_exact-match", "record_text-f1"):  # the same of single letters
        assert 100 * sum(hits) / len(hits) == pytest.approx(figures[name], abs=0.006)


# ---- spans ----


def test_they_are_learned_beside_another_task_and_written_with_the_scores_of_a_validation(data, tmp_path):
    """In one process and in two, which have some windows of a question each; by SQuAD's rules, of a passage's text."""
    run, out = tmp_path / "run", tmp_path / "out"
    options = ("--glue-tasks", "squad,cola", "--init-encoder", data / "encoder.pt", "--max-update", 250,
               "--lr", 0.005)  # fmt: skip
    run_here(task_arguments(data, run, *options, "--sampling-method", "uniform", "--disable-validation"))
    last = run / "checkpoint_last.pt"
    figures = validated(validate(data, last, "--batch-size", 3))
    assert figures["squad_f1"] >= 80 and figures["squad_em"] >= 50 and figures["cola_matthews"] >= 80, figures
    mtmoe("predict", data, "--path", last, "--subset", "valid", "--cpu", "--batch-size", 7, "--out", out)
    answers = json.loads((out / "squad.json").read_text())
    lines = gzip.decompress((data / "MRQA/dev/SQuAD.jsonl.gz").read_bytes()).decode().splitlines()[1:]
    asked = {one["qid"]: (one, record["context"]) for record in map(json.loads, lines) for one in record["qas"]}
    assert list(answers) == list(asked)
    assert all(answers[key] in context for key, (_, context) in asked.items())
    for name in ("f1", "em"):
        scores = [best(name, answers[key], one["answers"]) for key, (one, _) in asked.items()]
        assert round(100 * sum(scores) / len(scores), 2) == figures[f"squad_{name}"]
    assert any(answer != answer.lower() for answer in answers.values())
