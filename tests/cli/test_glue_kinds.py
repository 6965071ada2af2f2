"""Labels of words and rankings of any number of candidates through the real commands: learned, scored, written down."""

import json

import pytest
from seqeval.metrics import f1_score

from tests.helpers.benchmark import make_encoder, make_words_and_entities, train_tasks, validate, validated
from tests.helpers.commands import run


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kinds")
    make_words_and_entities(folder, {"train": 200, "dev": 40})
    make_encoder(folder / "encoder.pt")
    return folder


@pytest.fixture(scope="module")
def checkpoint(data):
    """Of a run that has learned both. Its sequences are so short that sentences lose words."""
    options = ("--glue-tasks", "record,wnut17", "--init-encoder", data / "encoder.pt", "--max-epoch", 12,
               "--max-positions", 11, "--arch", "mt_dense")  # fmt: skip
    train_tasks(data, data / "run", *options)
    return data / "run" / "checkpoint_best.pt"


def sentences(text):
    """The columns of each sentence."""
    return [[line.split("\t") for line in part.splitlines()] for part in text.removesuffix("\n").split("\n\n")]


@pytest.mark.slow
def test_what_is_written_has_the_scores_of_a_validation_in_any_number_of_processes(data, checkpoint, tmp_path):
    figures = [
        validated(validate(data, checkpoint, "--batch-size", size, "--distributed-world-size", processes))
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
