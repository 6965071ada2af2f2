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


@pytest.fixture
def report(tmp_path):
    """Reports of checkpoints of these names, which have what a report reads of them."""
    make_benchmark(tmp_path, {"train": 4, "dev": 4})
    heads, encoder = {name: {"num_outputs": 2} for name in ROWS}, {"num_hidden_layers": 6, "hidden_size": 384}
    model = {"_name": "mt_tag_minilm", "encoder": json.dumps(encoder), "heads": json.dumps(heads)}
    cfg = {"model": model, "common": {"seed": 3}, "checkpoint": {"finetune_from_model": None}}
    for name in ("a.pt", "b.pt"):
        torch.save({"cfg": cfg, "optimizer_history": [{"num_updates": 70}]}, tmp_path / name)

    def made(name="a.pt"):
        args = Namespace(path=str(tmp_path / name), results_path=str(tmp_path / "scores"), data=str(tmp_path))
        return ValidationReport(args, ROWS, about_encoder)

    return made


def validate(report, *subsets):
    predictions = {"rte": np.array([0.0, 1, 0, 0]), "copa": LABELS}
    for subset in subsets:
        report.begin(subset)
        report.end({name: FoundSet(4, {"accuracy": (LABELS, said)}) for name, said in predictions.items()})


def test_further_subsets_have_folders_of_their_own(report, tmp_path):
    validate(report(), "valid", "train")
    files = (tmp_path / "scores" / folder / "scores.json" for folder in (".", "train"))
    first, second = (json.loads(file.read_text()) for file in files)
    assert (first["settings"]["subset"], second["settings"]["subset"]) == ("valid", "train")
    digests = [scores["tasks"]["rte"]["sets"]["rte"]["data_sha256"] for scores in (first, second)]
    assert digests[0] != digests[1]


@pytest.mark.parametrize(("name", "subset"), [("b.pt", "valid"), ("a.pt", "train")])
def test_scores_of_something_else_stay(report, tmp_path, name, subset):
    validate(report(), "valid")
    file = tmp_path / "scores" / "scores.json"
    before = file.read_text()
    with refused("scores"):
        report(name).begin(subset)
    assert file.read_text() == before
    file.write_text("{}")
    with refused("scores"):
        report().begin("valid")
