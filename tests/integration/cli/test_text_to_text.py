"""A T5 through the real commands: it learns a task by text and writes it."""

import json
import re
import shutil

import pytest

from tests.helpers.benchmark import logged, make_benchmark, validate, validated
from tests.helpers.commands import PLUGIN, run
from tests.helpers.invoked import mtmoe
from tests.helpers.refused import refused
from tests.helpers.text_to_text import make_t5, train_text


@pytest.fixture(scope="module")
def text_data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    make_benchmark(folder, {"train": 300, "dev": 60})
    make_t5(folder / "t5.pt")
    return folder


@pytest.fixture(scope="module")
def cola_run(text_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cola")
    options = ("--init-model", text_data / "t5.pt", "--target-task", "cola", "--lr", 0.005, "--max-update", 220)
    (folder / "log.txt").write_text(train_text(text_data, folder, *options, "--validate-interval", 5))
    return folder


def test_it_learns_and_two_processes_score_it_as_mtmoe_evaluate_does_in_one(text_data, cola_run, tmp_path):
    options = ("--task", "text_to_text", "--target-task", "cola", "--max-source-positions", 64)
    output = validate(text_data, cola_run / "checkpoint_best.pt", *options, "--results-path", tmp_path / "validated")
    figures = validated(output)
    assert figures["cola_matthews"] >= 70 and figures["cola_no-label"] == 0, figures
    written = json.loads((tmp_path / "validated" / "scores.json").read_text())
    cola = written["tasks"]["cola"]
    assert cola["score"] == pytest.approx(figures["cola_matthews"], abs=0.01) and cola["examples"] == 60
    assert output.stdout.count("scores.json") == 1
    log = logged((cola_run / "log.txt").read_text(), "cola_matthews")
    assert max(log["best_all"], log["all"]) == figures["all"]
    checkpoint = tmp_path / "checkpoint_best.pt"
    shutil.copy(cola_run / checkpoint.name, checkpoint)
    result = run("mtmoe", "evaluate", text_data, "--path", checkpoint, "--batch-size", 16, "--cpu")
    found = json.loads((tmp_path / "scores" / "checkpoint_best-valid" / "scores.json").read_text())
    assert found["tasks"] == written["tasks"]
    assert f"{found['averages']['all']['score']:.2f} ±" in result.stdout and "DEBUG" not in result.stderr
    for name, value in (("--beam", 5), ("--path", f"{checkpoint}:{checkpoint}"), ("--path", text_data / "t5.pt")):
        with refused(name):
            mtmoe("evaluate", text_data, "--path", checkpoint, name, value, "--cpu")


def test_fairseq_generate_writes_what_was_learned(text_data, cola_run):
    output = run(
        "fairseq-generate", text_data, *PLUGIN, "--task", "text_to_text", "--target-task", "cola", "--path",
        cola_run / "checkpoint_best.pt", "--gen-subset", "valid", "--beam", 3, "--batch-size", 16, "--cpu",
        "--post-process", "sentencepiece", "--no-progress-bar",
    ).stdout  # fmt: skip
    right = dict(re.findall(r"^T-(\d+)\t(.*)$", output, re.MULTILINE))
    written = dict(re.findall(r"^H-(\d+)\t\S+\t(.*)$", output, re.MULTILINE))
    assert len(right) == len(written) == 60 and set(right.values()) == {"acceptable", "unacceptable"}
    assert sum(written[number] == text for number, text in right.items()) >= 50
