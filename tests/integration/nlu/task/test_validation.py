"""Metrics, and a validation's figures of whole sets, computed by hand; where its report's scores go, and what stays."""

import json
import logging
import math
import shutil
from argparse import Namespace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.logging import metrics
from fairseq_cli.train import validate

from fairseq_mtmoe.nlu.data.table import load_tables
from fairseq_mtmoe.nlu.task.glue import about_encoder
from fairseq_mtmoe.nlu.task.metrics import score, standard_error
from fairseq_mtmoe.nlu.task.report import FoundSet, ValidationReport
from tests.helpers.benchmark import make_benchmark, task_arguments
from tests.helpers.refused import refused
from tests.helpers.trainers import trainer_of

LABELS = ("contradiction", "entailment", "neutral")
ROWS = {name: row for name, row in load_tables().items() if name in ("copa", "rte")}


@pytest.fixture(scope="module")
def data(benchmark, tmp_path_factory):
    folder = shutil.copytree(benchmark, tmp_path_factory.mktemp("mnli"), dirs_exist_ok=True)
    for name, count in (("train", 6), ("dev_matched", 13), ("dev_mismatched", 5)):
        lines = [f"{n}\t{'abcde'[n % 5]} {'fghij'[n % 3]}\t{'abcdefgh'[n % 8]}\t{LABELS[n % 3]}" for n in range(count)]
        (folder / "MNLI").mkdir(exist_ok=True)
        (folder / "MNLI" / f"{name}.tsv").write_text("index\tsentence1\tsentence2\tgold_label\n" + "\n".join(lines))
    return folder


def options_of(data, tasks):
    return ("--init-encoder", data / "encoder.pt", "--batch-size-valid", 4, "--glue-tasks", tasks)


def events_of(folder):
    return [json.loads(line) for line in (folder / "mtmoe.jsonl").read_text().splitlines()]


def test_one_label_for_every_example_is_scored_and_said(data, tmp_path):
    trainer = trainer_of(task_arguments(data, tmp_path, *options_of(data, "mnli,stsb,copa")))
    for task, head in trainer.get_model().heads.items():
        head.weight.data.zero_()
        if head.bias is not None:
            head.bias.data.copy_(torch.arange(len(head.bias)) == (1 if task != "stsb" else 5))
    found = {}
    trainer.task.report = SimpleNamespace(begin=lambda subset: None, end=found.update)
    trainer.task.load_dataset("valid")
    model, criterion = trainer.model.eval(), trainer.criterion.eval()
    epoch = trainer.task.get_batch_iterator(trainer.task.dataset("valid"), max_sentences=4).next_epoch_itr()
    with metrics.aggregate(new_root=True):
        trainer.task.reduce_metrics([trainer.task.valid_step(b, model, criterion)[2] for b in epoch], criterion)
    constants = {key: one.constant for key, one in found.items()}
    assert constants == {"mnli": "entailment", "mnli/mismatched": "entailment", "stsb": "0.0", "copa": "0"}
    labels = [line.rpartition("\t")[2] for line in (data / "MNLI" / "dev_matched.tsv").read_text().splitlines()[1:]]
    assert found["mnli"].majority == {"accuracy": pytest.approx(100 * max(map(labels.count, LABELS)) / len(labels))}
    assert found["stsb"].majority == {"spearman": 0, "pearson": 0}


def test_tasks_of_one_mixture_have_lengths_of_their_own(data, tmp_path):
    shutil.copytree(data, tmp_path / "data")
    for folder, header, label in (("MNLI", "gold_label", "neutral"), ("RTE", "label", "entailment")):
        text = f"index\tsentence1\tsentence2\t{header}\n0\t{'a ' * 50}\t{'b ' * 50}\t{label}\n"
        for file in (tmp_path / "data" / folder).glob("*.tsv"):
            file.write_text(text)
    table = tmp_path / "table.yaml"
    table.write_text("mnli: {like: mnli, max_positions: 9}\n")
    options = (*options_of(data, "mnli,rte"), "--max-positions", 20, "--task-table", table)
    trainer = trainer_of(task_arguments(tmp_path / "data", tmp_path / "run", *options))
    trainer.task.load_dataset("valid")
    lengths = {key: max(np.diff(split.starts_S)) for key, split in trainer.task.evaluated.items()}
    assert lengths == {"mnli": 9, "mnli/mismatched": 9, "rte": 20}
    table.write_text("rte: {like: rte, max_positions: 25}\n")
    with refused("rte: max_positions"):
        trainer_of(task_arguments(tmp_path / "data", tmp_path / "other", *options))


def test_of_several_splits_each_is_scored_by_its_own_labels(data, tmp_path):
    """All examples read the same, so that all of the answers are right in one of the splits, and none in the other."""
    for split, label in (("train", "a"), ("valid", "a"), ("test", "b")):
        (tmp_path / f"{split}.tsv").write_text(f"text\tlabel\na b\t{label}\na b\t{label}\n")
    row = {"description": "Say it.", "kind": "classification", "texts": ["text"], "labels": ["a", "b"]}
    splits = {name: [{"file": f"{name}.tsv"}] for name in ("train", "valid", "test")}
    without_test = {name: splits[name] for name in ("train", "valid")}
    rows = {name: {**row, "title": name, "splits": of} for name, of in (("mine", splits), ("trained", without_test))}
    (tmp_path / "table.yaml").write_text(json.dumps(rows))
    options = (*options_of(data, "mine,trained"), "--task-table", tmp_path / "table.yaml")
    trainer = trainer_of(task_arguments(tmp_path, tmp_path / "run", *options))
    for split in ("valid", "test"):
        trainer.task.load_dataset(split)
    validate(trainer.cfg, trainer, trainer.task, trainer.get_train_iterator(epoch=1), ["valid", "test"])
    found = {event["subset"]: event["tasks"] for event in events_of(tmp_path / "run") if event["event"] == "valid"}
    assert {split: list(tasks) for split, tasks in found.items()} == {"valid": ["mine", "trained"], "test": ["mine"]}
    assert sorted(tasks["mine"]["accuracy"] for tasks in found.values()) == [0, 100]


def test_mnli_counts_once_in_the_means(data, tmp_path):
    logging.disable(logging.INFO)
    trainer = trainer_of(task_arguments(data, tmp_path, *options_of(data, "mnli,stsb,cola,copa")))
    trainer.task.load_dataset("valid")
    with torch.no_grad():  # so that not all examples get the same answer
        for head in trainer.get_model().heads.values():
            head.weight *= 50
    stats, post_validate = {}, trainer.task.post_validate
    trainer.task.post_validate = lambda model, found, meters: stats.update(found) or post_validate(model, found, meters)
    validate(trainer.cfg, trainer, trainer.task, trainer.get_train_iterator(epoch=1), ["valid"])
    event = next(event for event in events_of(tmp_path) if event["event"] == "valid")
    mnli = (stats["mnli_accuracy"] + stats["mnli/mismatched_accuracy"]) / 2
    small = [stats[name] for name in ("stsb_spearman", "cola_matthews", "copa_accuracy")]
    means = {"mnli_mean": mnli, "small": sum(small) / 3, "all": (mnli + sum(small)) / 4}
    for name, value in means.items():
        assert stats[name] == pytest.approx(value, abs=0.011) == event["groups"][name]["mean"], name


def report(folder, name="a.pt"):
    """Of a checkpoint with what a report reads of it."""
    make_benchmark(folder, {"train": 4, "dev": 4})
    heads, encoder = {name: {"num_outputs": 2} for name in ROWS}, {"num_hidden_layers": 6, "hidden_size": 384}
    model = {"_name": "mt_tag_minilm", "encoder": json.dumps(encoder), "heads": json.dumps(heads)}
    cfg = {"model": model, "common": {"seed": 3}, "checkpoint": {"finetune_from_model": None}}
    torch.save({"cfg": cfg, "optimizer_history": [{"num_updates": 70}]}, folder / name)
    args = Namespace(path=str(folder / name), results_path=str(folder / "scores"), data=str(folder))
    return ValidationReport(args, ROWS, about_encoder)


def test_further_subsets_have_folders_of_their_own_and_other_scores_stay(tmp_path):
    made, labels, said = report(tmp_path), np.array([0.0, 1, 1, 0]), np.array([0.0, 1, 0, 0])
    rte, copa, none = (FoundSet(len(of), {"accuracy": (of, said[: len(of)])}) for of in (labels, said, said[:0]))
    made.begin("valid")
    with refused(str(tmp_path / "a.pt")):
        made.end({"rte": rte, "copa": none})
    files = [tmp_path / "scores" / folder / "scores.json" for folder in (".", "train")]
    assert not files[0].exists()
    made = report(tmp_path)
    for subset in ("valid", "train"):
        made.begin(subset)
        made.end({"rte": rte, "copa": copa})
    first, second = (json.loads(file.read_text()) for file in files)
    assert (first["settings"]["subset"], second["settings"]["subset"]) == ("valid", "train")
    assert len({scores["tasks"]["rte"]["sets"]["rte"]["data_sha256"] for scores in (first, second)}) == 2
    for name, subset in (("b.pt", "valid"), ("a.pt", "train")):
        with refused("scores"):
            report(tmp_path, name).begin(subset)
    assert json.loads(files[0].read_text()) == first


def values(*numbers):
    return np.array(numbers, dtype=np.float64)


def test_metrics_by_hand():
    # 3 true positives, 2 true negatives, 1 false positive, 2 false negatives
    labels, predictions = values(1, 1, 1, 0, 0, 0, 1, 1), values(1, 1, 1, 0, 0, 1, 0, 0)
    expected = (3 * 2 - 1 * 2) / math.sqrt((3 + 1) * (3 + 2) * (2 + 1) * (2 + 2))
    assert score("matthews", labels, predictions) == pytest.approx(100 * expected)
    # Deviations from the means: -2, -1, 3 and -1, -1, 2; sums of products 9, of squares 14 and 6.
    assert score("pearson", values(1, 2, 6), values(0, 0, 3)) == pytest.approx(900 / math.sqrt(84))
    assert score("pearson", values(1, 2, 6), values(1, 1, 1)) == 0
    # Ranks 1.5 1.5 3 against 1 2 3, whose correlation is √3/2
    assert score("spearman", values(1, 1, 2), values(1, 2, 3)) == pytest.approx(100 * math.sqrt(3) / 2)
    # Precision 2/3, recall 2/4
    assert score("f1", values(1, 1, 1, 1, 0), values(1, 1, 0, 0, 1)) == pytest.approx(100 * 2 * 2 / (2 * 2 + 1 + 2))
    # Of classes that occur. Class 0: precision 1/2, recall 1; class 1: 1/2, 1/2; class 2: nothing found
    labels, predictions = values(0, 1, 1, 2), values(0, 1, 0, 1)
    assert score("macro-f1", labels, predictions) == pytest.approx(100 * (2 / 3 + 1 / 2 + 0) / 3)
    # An answer of no class is wrong, and no class of its own: class 0 has recall 1/2.
    assert score("macro-f1", values(0, 0, 1), values(0, -1, 1)) == pytest.approx(100 * (2 / 3 + 1) / 2)
    # The error of accuracy is that of a share; too few examples have none.
    error = standard_error("accuracy", values(0, 1, 2, 2), values(0, 1, 1, 2))
    assert error == pytest.approx(100 * math.sqrt(0.75 * 0.25 / 4))
    assert math.isnan(standard_error("f1", values(1), values(1))) and math.isnan(score("spearman", values(), values()))


def test_the_error_of_other_metrics_is_how_far_fresh_sets_lie_apart():
    draw = np.random.default_rng(5)
    labels = draw.integers(0, 2, 20000).astype(float)
    predictions = np.where(draw.random(20000) < 0.8, labels, 1 - labels)
    sets = [draw.integers(0, 20000, 200) for _ in range(200)]
    apart = np.std([score("f1", labels[one], predictions[one]) for one in sets])
    assert standard_error("f1", labels[:200], predictions[:200]) == pytest.approx(apart, rel=0.25)
