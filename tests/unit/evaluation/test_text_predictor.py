"""Predictions of an untrained T5: which sets it writes answers of, in which files, and that they are what is scored."""

import json

import pytest
import torch
from fairseq import checkpoint_utils

from fairseq_mtmoe import register
from fairseq_mtmoe.evaluation.predictor import Predictor
from fairseq_mtmoe.evaluation.stored import Inference
from tests.helpers.refused import refused
from tests.helpers.text_to_text import make_t5, save_untrained_text
from tests.unit.evaluation.test_predictor import PAIRS, write

ON_CPU = Inference(batch_size=5, cpu=True)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The same pairs in several tasks' files, and checkpoints of models of RTE and of SQuAD."""
    folder = tmp_path_factory.mktemp("unlabelled")
    table = ["index\tsentence1\tsentence2", *(f"{10 + n}\t{a}\t{b}" for n, (a, b) in enumerate(PAIRS))]
    for name in ("RTE/test.tsv", "WNLI/test.tsv"):
        write(folder / name, table)
    pairs = [{"sentence1": a, "sentence2": b, "idx": n} for n, (a, b) in enumerate(PAIRS)]
    write(folder / "AX-b/AX-b.jsonl", map(json.dumps, pairs))
    qas = [{"id": f"q{n}", "question": a} for n, (a, _) in enumerate(PAIRS)]
    squad = {"data": [{"paragraphs": [{"context": "a b c", "qas": qas}]}]}
    write(folder / "SQuAD/dev-v1.1.json", [json.dumps(squad)])
    make_t5(folder / "t5.pt")
    register()
    for task in ("rte", "squad"):
        save_untrained_text(folder, folder / f"{task}.pt", "--target-task", task)
    return folder


def predictor(data, task):
    return Predictor(str(data), str(data / f"{task}.pt"), ON_CPU)


def test_it_predicts_its_task_and_those_that_are_asked_and_answered_alike(data):
    """The diagnostic set of sentences, as RTE's own, has the same answers."""
    one = predictor(data, "rte")
    choice = one.choose("test")
    assert [(chosen.key, chosen.head) for chosen in choice.sets] == [("rte", "rte"), ("axb", "rte")]
    assert choice.headless == ["wnli"]
    rte, axb = (one.predict(chosen, *one.read([chosen])) for chosen in choice.sets)
    said = [line.split("\t") for line in rte.splitlines()[1:]]
    assert [key for key, _ in said] == [str(10 + n) for n in range(len(PAIRS))]
    assert {label for _, label in said} <= {"entailment", "not_entailment"}
    assert [json.loads(line)["label"] for line in axb.splitlines()] == [label for _, label in said]


def test_a_validation_scores_the_text_that_is_written(data):
    """A passage's answers, as the JSON of SQuAD's evaluation, beside what a validation step of the task makes."""
    one = predictor(data, "squad")
    (chosen,) = one.choose("valid").sets
    content = json.loads(one.predict(chosen, *one.read([chosen])))
    assert list(content) == [f"q{n}" for n in range(len(PAIRS))] and len(set(content.values())) > 1
    squad = json.loads((data / "SQuAD/dev-v1.1.json").read_text())
    for number, question in enumerate(squad["data"][0]["paragraphs"][0]["qas"]):
        question["answers"] = [{"text": content[question["id"]] if number % 2 else "z", "answer_start": 0}]
    labelled = data / "labelled"
    write(labelled / "MRQA/dev/SQuAD.jsonl", [json.dumps({"context": "a b c", "qas": [
        {"qid": one["id"], "question": one["question"], "answers": [answer["text"] for answer in one["answers"]],
         "detected_answers": []} for one in squad["data"][0]["paragraphs"][0]["qas"]]})])  # fmt: skip
    overrides = {"data": str(labelled)}
    (model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task([str(data / "squad.pt")], overrides)
    task.load_dataset("valid")
    dataset = task.dataset("valid")
    criterion = task.build_criterion(cfg.criterion).eval()
    sample = dataset.collater([dataset[n] for n in range(len(PAIRS))])
    _, _, logged = task.valid_step(sample, model.eval(), criterion)
    values, examples = logged["_squad_predictions"], logged["_squad_examples"]
    written = [task.pieces.text(values[examples == n].long().tolist()) for n in range(len(PAIRS))]
    assert written == list(content.values())


def test_weights_of_a_t5_that_are_not_finite(data, tmp_path):
    state = torch.load(data / "rte.pt")
    state["model"]["decoder.layer_norm.weight"][0] = float("nan")
    torch.save(state, tmp_path / "nan.pt")
    one = Predictor(str(data), str(tmp_path / "nan.pt"), ON_CPU)
    (rte, _) = one.choose("test").sets
    with refused("nan.pt"):
        one.predict(rte, *one.read([rte]))
