"""A T5 through the real commands: it learns a task by text, writes it, goes on, and predicts."""

import json
import re
import shutil

import pytest
import torch
from click.testing import CliRunner

from fairseq_mtmoe.cli.main import commands
from fairseq_mtmoe.errors import UserError
from tests.helpers.benchmark import logged, make_benchmark, make_unlabelled
from tests.helpers.commands import PLUGIN, run
from tests.helpers.text_to_text import make_t5, train_text


@pytest.fixture(scope="session")
def text_data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    make_benchmark(folder, {"train": 300, "dev": 60})
    make_unlabelled(folder)
    make_t5(folder / "t5.pt")
    return folder


@pytest.fixture(scope="session")
def cola_run(text_data, tmp_path_factory):
    """The folder of a run that has learned CoLA."""
    folder = tmp_path_factory.mktemp("cola")
    options = ("--init-model", text_data / "t5.pt", "--target-task", "cola", "--lr", 0.005, "--max-update", 300)
    (folder / "log.txt").write_text(train_text(text_data, folder, *options, "--validate-interval", 5))
    return folder


def validate(data, run_folder, *args):
    result = run(
        "fairseq-validate", data, *PLUGIN, "--task", "text_to_text", "--target-task", "cola", "--path",
        run_folder / "checkpoint_best.pt", "--batch-size", 16, "--cpu", "--log-format", "json", "--no-progress-bar",
        "--num-workers", 0, "--max-source-positions", 64, *args,
    )  # fmt: skip
    return result, logged(result.stdout + result.stderr, "all")


@pytest.mark.slow
def test_it_learns_and_a_validation_writes_its_scores(text_data, cola_run, tmp_path):
    """In two processes, the same as in one."""
    for processes in (1, 2):
        options = ("--results-path", tmp_path / "scores", "--distributed-world-size", processes)
        result, figures = validate(text_data, cola_run, *options)
        assert figures["cola_matthews"] >= 70 and figures["cola_no-label"] == 0, figures
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


@pytest.mark.slow
def test_mtmoe_evaluate_scores_it_as_a_validation_does(text_data, cola_run, tmp_path):
    _, figures = validate(text_data, cola_run)
    checkpoint = tmp_path / "checkpoint_best.pt"
    shutil.copy(cola_run / checkpoint.name, checkpoint)
    result = run("mtmoe", "evaluate", text_data, "--path", checkpoint, "--batch-size", 16, "--cpu")
    written = json.loads((tmp_path / "scores" / "checkpoint_best-valid" / "scores.json").read_text())
    assert written["tasks"]["cola"]["score"] == pytest.approx(figures["cola_matthews"], abs=0.01)
    assert f"{written['averages']['all']['score']:.2f} ±" in result.stdout and "DEBUG" not in result.stderr
    for arguments, sentence in (
        (["--beam", 5], "`--beam` must be left out with checkpoints of `--task text_to_text`"),
        (["--path", f"{checkpoint}:{checkpoint}"], "`--path` must be one checkpoint with `--task text_to_text`"),
        (["--path", text_data / "t5.pt"], "`--path` must be checkpoints of one task in one evaluation"),
    ):
        asked = ("evaluate", text_data, "--path", checkpoint, *arguments, "--cpu")
        refused = CliRunner().invoke(commands, list(map(str, asked)))  # in this process, which starts no other
        assert isinstance(refused.exception, UserError) and sentence in str(refused.exception)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_resuming_changes_no_bit_of_a_t5(text_data, tmp_path):
    options = ("--init-model", text_data / "t5.pt", "--source-task", "copa", "--train-examples", 32, "--dropout", 0.1,
               "--batch-size", 8, "--disable-validation", "--save-interval-updates", 3)  # fmt: skip
    train_text(text_data, tmp_path / "whole", *options, "--max-update", 6)
    for updates in (3, 6):
        train_text(text_data, tmp_path / "parts", *options, "--max-update", updates)
    whole, parts = (torch.load(tmp_path / name / "checkpoint_last.pt")["model"] for name in ("whole", "parts"))
    assert [key for key in whole if not torch.equal(whole[key], parts[key])] == []
    begun = json.loads((tmp_path / "parts" / "mtmoe.jsonl").read_text().splitlines()[0])
    assert (begun["sizes"], begun["train_examples"], begun["is_source"]) == ({"copa": 32}, 32, True)
