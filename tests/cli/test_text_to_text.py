"""A T5 through the real commands: it learns a task by text, writes it, and predicts."""

import json
import re
import shutil

import pytest

from fairseq_mtmoe.cli.main import commands
from tests.helpers import benchmark
from tests.helpers.benchmark import logged, make_benchmark, make_unlabelled
from tests.helpers.commands import PLUGIN, run
from tests.helpers.refused import refused
from tests.helpers.text_to_text import make_t5, train_text

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def text_data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    make_benchmark(folder, {"train": 300, "dev": 60})
    make_unlabelled(folder)
    make_t5(folder / "t5.pt")
    return folder


@pytest.fixture(scope="module")
def cola_run(text_data, tmp_path_factory):
    """The folder of a run that has learned CoLA."""
    folder = tmp_path_factory.mktemp("cola")
    options = ("--init-model", text_data / "t5.pt", "--target-task", "cola", "--lr", 0.005, "--max-update", 220)
    (folder / "log.txt").write_text(train_text(text_data, folder, *options, "--validate-interval", 5))
    return folder


def validate(data, run_folder, *args, joined=1):
    options = ("--task", "text_to_text", "--target-task", "cola", "--max-source-positions", 64)
    result = benchmark.validate(data, run_folder / "checkpoint_best.pt", *options, *args, joined=joined)
    return result, logged(result.stdout + result.stderr, "all")


@pytest.fixture(scope="module")
def figures(text_data, cola_run):
    return validate(text_data, cola_run)[1]


def test_it_learns_and_a_validation_writes_its_scores(text_data, cola_run, figures, tmp_path):
    """In two processes, the same as in one."""
    result, in_two = validate(text_data, cola_run, "--results-path", tmp_path / "scores", joined=2)
    assert in_two == figures and figures["cola_matthews"] >= 70 and figures["cola_no-label"] == 0, figures
    written = json.loads((tmp_path / "scores" / "scores.json").read_text())
    cola = written["tasks"]["cola"]
    assert cola["score"] == pytest.approx(figures["cola_matthews"], abs=0.01) and cola["examples"] == 60
    assert cola["sets"]["cola"]["also"]["no-label"] == [0, 0]
    settings = written["settings"]
    assert (settings["model"], settings["trained_tasks"]) == ("t5", ["cola"])
    assert settings["t5"] == {"layers": 2, "width": 16}
    assert result.stdout.count("scores.json") == 1
    log = logged((cola_run / "log.txt").read_text(), "cola_matthews")
    assert max(log["best_all"], log["all"]) == figures["all"]


def test_mtmoe_evaluate_scores_it_as_a_validation_does(text_data, cola_run, figures, tmp_path):
    checkpoint = tmp_path / "checkpoint_best.pt"
    shutil.copy(cola_run / checkpoint.name, checkpoint)
    result = run("mtmoe", "evaluate", text_data, "--path", checkpoint, "--batch-size", 16, "--cpu")
    written = json.loads((tmp_path / "scores" / "checkpoint_best-valid" / "scores.json").read_text())
    assert written["tasks"]["cola"]["score"] == pytest.approx(figures["cola_matthews"], abs=0.01)
    assert f"{written['averages']['all']['score']:.2f} ±" in result.stdout and "DEBUG" not in result.stderr
    for name, value in (("--beam", 5), ("--path", f"{checkpoint}:{checkpoint}"), ("--path", text_data / "t5.pt")):
        asked = ["evaluate", text_data, "--path", checkpoint, name, value, "--cpu"]
        with refused(name):
            commands.main(list(map(str, asked)), standalone_mode=False)  # in this process, which starts no other


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


def test_mtmoe_predict_writes_what_validation_scores(text_data, cola_run, tmp_path):
    """GLUE's file of test data, whose examples are those of the validation data."""
    run("mtmoe", "predict", text_data, "--path", cola_run / "checkpoint_best.pt", "--out", tmp_path / "out", "--cpu")
    header, *lines = (tmp_path / "out" / "CoLA.tsv").read_text().splitlines()
    assert header == "index\tprediction" and [path.name for path in (tmp_path / "out").iterdir()] == ["CoLA.tsv"]
    right = [line.split("\t")[1] for line in (text_data / "CoLA" / "dev.tsv").read_text().splitlines()]
    said = dict(line.split("\t") for line in lines)
    assert list(said) == [str(1000 + n) for n in range(60)]
    accuracy = sum(said[str(1000 + n)] == label for n, label in enumerate(right)) / 60
    assert accuracy >= 0.85
