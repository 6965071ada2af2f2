"""`mtmoe predict` on a model that has learned: its files have the scores that `fairseq-validate` gives."""

import json

import numpy as np
import pytest

from fairseq_mtmoe.tasks._benchmark.metrics import score
from tests.helpers.commands import run

pytestmark = pytest.mark.slow

FILES = {"cola": "CoLA.tsv", "stsb": "STS-B.tsv", "copa": "COPA.jsonl", "wic": "WiC.jsonl"}
METRICS = {"cola": "matthews", "stsb": "spearman", "copa": "accuracy", "wic": "accuracy"}


def predict(data, mixture, *args):
    arguments = (data, "--path", mixture / "checkpoint_best.pt", "--batch-size", 16, "--cpu", *args)
    return run("mtmoe", "predict", *arguments)


@pytest.fixture(scope="module")
def written(benchmark_data, mixture, tmp_path_factory):
    """The folder of the files for the benchmarks' servers, and what was said."""
    folder = tmp_path_factory.mktemp("predicted") / "predictions"
    return folder, predict(benchmark_data, mixture, "--out", folder)


def answers(folder, task):
    """The predictions in a file, by key."""
    text = (folder / FILES[task]).read_text()
    if FILES[task].endswith(".tsv"):
        header, *lines = (line.split("\t") for line in text.splitlines())
        assert header == ["index", "prediction"]
        return {int(key): float(label) for key, label in lines}
    numbers = {"true": 1.0, "false": 0.0, 0: 0.0, 1: 1.0}
    return {record["idx"]: numbers[record["label"]] for record in map(json.loads, text.splitlines())}


def true_labels(data, task):
    """What stands in the validation data, in its order."""
    if task in ("copa", "wic"):
        lines = (data / {"copa": "COPA", "wic": "WiC"}[task] / "val.jsonl").read_text().splitlines()
        return [float(json.loads(line)["label"]) for line in lines]
    if task == "cola":
        return [float(line.split("\t")[1]) for line in (data / "CoLA/dev.tsv").read_text().splitlines()]
    return [float(line.split("\t")[3]) for line in (data / "STS-B/dev.tsv").read_text().splitlines()[1:]]


def test_files_have_the_scores_of_validation(benchmark_data, figures, written):
    folder, _ = written
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES.values())
    for task, metric in METRICS.items():
        predicted, labels = answers(folder, task), np.array(true_labels(benchmark_data, task))
        assert list(predicted) == list(range(1000, 1060)), task
        found = score(metric, labels, np.array(list(predicted.values())))
        assert round(found, 2) == figures[f"{task}_{metric}"], task
    values = list(answers(folder, "stsb").values())
    assert min(values) >= 0 and max(values) <= 5


def test_validation_data_with_the_same_predictions(benchmark_data, mixture, written, tmp_path):
    """In the place of others, whose files are gone."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "RTE.tsv").write_text("old")
    predict(benchmark_data, mixture, "--subset", "valid", "--out", tmp_path / "out", "--overwrite")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(FILES.values())
    for task in FILES:
        valid, test = answers(tmp_path / "out", task), answers(written[0], task)
        assert valid == {key - 1000: value for key, value in test.items()}, task
