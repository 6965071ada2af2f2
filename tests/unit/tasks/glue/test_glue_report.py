"""A validation's report: where its scores go, of what they are, and what it does not replace."""

import json
from argparse import Namespace

import numpy as np
import pytest
import torch

from fairseq_mtmoe.data.nlu.table import load_tables
from fairseq_mtmoe.tasks._benchmark.report import FoundSet, ValidationReport
from fairseq_mtmoe.tasks.glue import about_encoder
from tests.helpers.benchmark import make_benchmark
from tests.helpers.refused import refused

ROWS = {name: row for name, row in load_tables().items() if name in ("copa", "rte")}
LABELS = np.array([0.0, 1, 1, 0])


def found(predictions):
    return FoundSet(len(LABELS), {"accuracy": (LABELS, predictions)})


def save_checkpoint(path):
    """What a report reads of a checkpoint."""
    heads = {name: {"num_outputs": 2} for name in ROWS}
    model = {"_name": "mt_tag_minilm", "encoder": json.dumps({"num_hidden_layers": 6, "hidden_size": 384}),
             "heads": json.dumps(heads)}  # fmt: skip
    state = {
        "cfg": {"model": model, "common": {"seed": 3}, "checkpoint": {"finetune_from_model": None}},
        "optimizer_history": [{"num_updates": 70}],
    }
    torch.save(state, path)
    return path


@pytest.fixture
def report(tmp_path):
    make_benchmark(tmp_path, {"train": 4, "dev": 4})
    return lambda name="a.pt": ValidationReport(
        Namespace(path=str(save_checkpoint(tmp_path / name)), results_path=str(tmp_path / "scores"),
                  data=str(tmp_path)),
        ROWS, about_encoder,
    )  # fmt: skip


def validate(report, *subsets):
    for subset in subsets:
        report.begin(subset)
        report.end({"rte": found(np.array([0.0, 1, 0, 0])), "copa": found(LABELS)})


def test_further_subsets_have_folders_of_their_own(report, tmp_path):
    validate(report(), "valid", "train")
    first, second = (json.loads((tmp_path / "scores" / place / "scores.json").read_text()) for place in (".", "train"))
    assert (first["settings"]["subset"], second["settings"]["subset"]) == ("valid", "train")
    digests = [scores["tasks"]["rte"]["sets"]["rte"]["data_sha256"] for scores in (first, second)]
    assert digests[0] != digests[1]


@pytest.mark.parametrize(("name", "subset"), [("b.pt", "valid"), ("a.pt", "train")])
def test_scores_of_something_else_stay(report, tmp_path, name, subset):
    validate(report(), "valid")
    before = (tmp_path / "scores" / "scores.json").read_text()
    with refused("scores"):
        report(name).begin(subset)
    assert (tmp_path / "scores" / "scores.json").read_text() == before
    (tmp_path / "scores" / "scores.json").write_text("{}")
    with refused("scores"):
        report().begin("valid")
