"""Predictions of untrained models: which sets, heads or answers, which files; and they are what is scored."""

import json

import pytest
import torch
from fairseq import checkpoint_utils

from fairseq_mtmoe import register
from fairseq_mtmoe.nlu.predictor import Predictor
from fairseq_mtmoe.translation.decode.stored import Inference
from tests.golden.runs import FROZEN
from tests.helpers.benchmark import make_encoder, save_untrained
from tests.helpers.invoked import invoked
from tests.helpers.refused import refused
from tests.helpers.text_to_text import make_t5, save_untrained_text

PAIRS = [(a, b) for a in ("a b", "d", "j j j") for b in ("c", "e f g", "h", "i a")]
LINES = ["index\tsentence1\tsentence2", *(f"{10 + n}\t{a}\t{b}" for n, (a, b) in enumerate(PAIRS))]
ON_CPU = Inference(batch_size=2, cpu=True)


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def predictor(data, path=None, inference=ON_CPU, *table):
    return Predictor(str(data), str(path or data / "checkpoint.pt"), inference, *map(str, table))


def predicted(one, chosen, *advance):
    return one.predict(chosen, *one.read([chosen]), *advance)


def validated(path, **overrides):
    """The task, and what a validation step of it logs of all pairs."""
    (model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task([str(path)], overrides)
    task.load_dataset("valid")
    dataset = task.dataset("valid")
    sample = dataset.collater([dataset[n] for n in range(len(PAIRS))])
    return task, task.valid_step(sample, model.eval(), task.build_criterion(cfg.criterion).eval())[2]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The same pairs as test data of seven sets, and `checkpoint.pt`, which has the heads of four tasks."""
    folder = tmp_path_factory.mktemp("unlabelled")
    for name in ("MNLI/test_matched.tsv", "diagnostic/diagnostic.tsv", "RTE/test.tsv", "WNLI/test.tsv"):
        write(folder / name, LINES)
    for name, first, second in (("RTE/test", "premise", "hypothesis"), ("AX-b/AX-b", "sentence1", "sentence2")):
        records = [{first: a, second: b, "idx": n} for n, (a, b) in enumerate(PAIRS)]
        write(folder / f"{name}.jsonl", map(json.dumps, records))
    questions = [{"question": a, "idx": n, "answers": [{"text": b, "idx": 0}]} for n, (a, b) in enumerate(PAIRS)]
    write(folder / "MultiRC/test.jsonl", [json.dumps({"idx": 0, "passage": {"text": "a", "questions": questions}})])
    make_encoder(folder / "encoder.pt")
    register()
    save_untrained(folder, folder / "checkpoint.pt", "--glue-tasks", "mnli,rte,multirc,stsb")
    return folder


@pytest.fixture(scope="module")
def files(data):
    one = predictor(data)
    return {chosen.submission.file: predicted(one, chosen) for chosen in one.choose("test").sets}


def test_sets_of_the_models_tasks_and_those_with_such_a_head_are_predicted(data, files):
    choice = predictor(data).choose("test")
    own = {name: name for name in ("mnli", "rte", "multirc")}
    assert {one.key: one.head for one in choice.sets} == {**own, "ax": "mnli", "superglue_rte": "rte", "axb": "rte"}
    assert (choice.headless, choice.absent) == (["wnli"], ["stsb", "mnli/mismatched"])
    folder = data / "predictions" / "checkpoint-test"
    write(folder / "RTE.tsv", ["old"])
    options = ("--path", data / "checkpoint.pt", "--batch-size", "2", "--cpu", "--overwrite")
    said = invoked("predict", data, *options).stderr
    assert {path.name: path.read_text() for path in folder.iterdir()} == files
    assert "no head for wnli.\n" in said and "no test data of stsb, mnli/mismatched.\n" in said


def test_what_cannot_be_predicted_is_refused(data, tmp_path):
    with refused(data.name):
        predictor(data).choose("valid")
    for path in (FROZEN / "sparse" / "checkpoint_last.pt", data / "encoder.pt"):
        with refused(path.name):
            predictor(data, path)
    write(tmp_path / "MNLI/test_matched.tsv", [*LINES, LINES[1]])  # a key twice
    one = predictor(tmp_path, data / "checkpoint.pt")
    with refused("mnli: key"):
        predicted(one, *one.choose("test").sets)


def labels(content, column=1):
    return [line.split("\t")[column] for line in content.splitlines()[1:]]


def json_labels(content):
    return [json.loads(line)["label"] for line in content.splitlines()]


def test_another_tasks_head_predicts_what_it_predicts_of_its_own(files):
    assert files["AX.tsv"] == files["MNLI-m.tsv"]
    assert json_labels(files["RTE.jsonl"]) == json_labels(files["AX-b.jsonl"]) == labels(files["RTE.tsv"])
    for name in ("MNLI-m.tsv", "RTE.tsv"):
        assert len(set(labels(files[name]))) > 1, "a model that says one thing alone would hide a wrong order"


def test_batches_of_so_many_tokens_in_half_precision(data, files):
    one, counts = predictor(data, inference=Inference(max_tokens=16, bf16=True, cpu=True)), []
    content = predicted(one, one.choose("test").sets[0], counts.append)
    assert sum(counts) == len(PAIRS) and len(counts) > 1
    assert labels(content, 0) == labels(files["MNLI-m.tsv"], 0) == [str(10 + n) for n in range(12)]


def test_predictions_of_a_model_that_validates_in_balance_do_not_depend_on_the_batch(data, tmp_path):
    model = ("--arch", "mt_tag", "--num-experts", 3, "--expert-gates", "base", "--base-evaluation", "balanced")
    save_untrained(data, tmp_path / "base.pt", "--glue-tasks", "stsb,mnli", *model)
    found = []
    for size in (1, len(PAIRS)):
        one = predictor(data, tmp_path / "base.pt", Inference(batch_size=size, cpu=True))
        chosen = next(each for each in one.choose("test").sets if each.key == "mnli")
        with torch.no_grad():
            batches = [(batch["id"], one.model(**batch["net_input"])["mnli"])
                       for batch in one.batches(chosen, *one.read([chosen]))]  # fmt: skip
        ids, logits = (torch.cat(parts) for parts in zip(*batches, strict=True))
        found.append(logits[ids.argsort()])
    torch.testing.assert_close(*found)


def test_validation_scores_what_is_written(data, tmp_path):
    """A class, and a regression's values within its bounds: some of the model's are beyond one or the other."""
    state = torch.load(data / "checkpoint.pt")
    state["model"]["heads.stsb.weight"] *= 100
    torch.save(state, tmp_path / "wide.pt")
    names = ["entailment", "not_entailment"]
    for task, folder, label, right in (("stsb", "STS-B", "score", "1"), ("rte", "RTE", "label", names[0])):
        data = tmp_path / task
        write(data / folder / "dev.tsv", [f"{LINES[0]}\t{label}", *(f"{line}\t{right}" for line in LINES[1:])])
        one = predictor(data, tmp_path / "wide.pt")
        said = labels(predicted(one, one.choose("valid").sets[0]))
        values = [float(text) if task == "stsb" else names.index(text) for text in said]
        _, logged = validated(tmp_path / "wide.pt", data=str(data), glue_tasks=task)
        assert logged[f"_{task}_predictions"][:, 1].tolist() == pytest.approx(values, abs=1e-4)
        assert (min(values), max(values)) == ((0, 5) if task == "stsb" else (0, 1))


def test_a_users_table(data, tmp_path):
    path = tmp_path / "table.yaml"
    row = {"title": "Mine", "description": "Say it.", "kind": "classification", "texts": ["sentence1", "sentence2"],
           "labels": ["a", "b"], "head": "rte", "splits": {"test": [{"file": "WNLI/test.tsv"}]}}  # fmt: skip
    path.write_text(json.dumps({"mine": row}))
    last = predictor(data, None, ON_CPU, path).choose("test").sets[-1]
    assert (last.key, last.head, last.submission.file) == ("mine", "rte", "mine.tsv")
    path.write_text(json.dumps({"mine": {**row, "submissions": {"test": {"file": "RTE.tsv"}}}}))
    with refused("mine: submissions: file"):
        predictor(data, None, ON_CPU, path).choose("test")


def test_labels_in_another_order_have_the_same_predictions(data, files, tmp_path):
    """Also of AX, whose row does not change, and of RTE with another file's labels."""
    path = tmp_path / "table.yaml"
    path.write_text(
        "mnli: {like: mnli, labels: [neutral, contradiction, entailment], submissions: {test: {file: MNLI-m.tsv}}}\n"
        "rte: {like: rte, labels: [not_entailment, entailment], submissions: {test: {file: RTE.tsv}}}\n"
        "multirc: {like: multirc, labels: ['1', '0'], submissions: "
        "{test: {file: MultiRC.jsonl, form: multirc, labels: [1, 0]}}}\n"
    )
    one = predictor(data, None, ON_CPU, path)
    assert {each.submission.file: predicted(one, each) for each in one.choose("test").sets} == files


# ---- a T5, which writes its answers ----


@pytest.fixture(scope="module")
def text_data(tmp_path_factory):
    """The same pairs in several tasks' files, and checkpoints of models of RTE and of SQuAD."""
    folder = tmp_path_factory.mktemp("unlabelled")
    for name in ("RTE/test.tsv", "WNLI/test.tsv"):
        write(folder / name, LINES)
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


def test_it_predicts_its_task_and_those_that_are_asked_and_answered_alike(text_data):
    """The diagnostic set of sentences, as RTE's own, has the same answers."""
    one = predictor(text_data, text_data / "rte.pt")
    choice = one.choose("test")
    assert [(chosen.key, chosen.head) for chosen in choice.sets] == [("rte", "rte"), ("axb", "rte")]
    assert choice.headless == ["wnli"]
    rte, axb = (predicted(one, chosen) for chosen in choice.sets)
    assert labels(rte, 0) == [str(10 + n) for n in range(len(PAIRS))]
    assert set(labels(rte)) <= {"entailment", "not_entailment"} and json_labels(axb) == labels(rte)


def test_a_validation_scores_the_text_that_is_written(text_data):
    """A passage's answers, as the JSON of SQuAD's evaluation, beside what a validation step of the task makes."""
    one = predictor(text_data, text_data / "squad.pt")
    content = json.loads(predicted(one, *one.choose("valid").sets))
    assert list(content) == [f"q{n}" for n in range(len(PAIRS))] and len(set(content.values())) > 1
    qas = [{"qid": f"q{n}", "question": a, "answers": [content[f"q{n}"] if n % 2 else "z"], "detected_answers": []}
           for n, (a, _) in enumerate(PAIRS)]  # fmt: skip
    write(text_data / "labelled/MRQA/dev/SQuAD.jsonl", [json.dumps({"context": "a b c", "qas": qas})])
    task, logged = validated(text_data / "squad.pt", data=str(text_data / "labelled"))
    examples, values = logged["_squad_predictions"].unbind(1)
    written = [task.pieces.text(values[examples == n].long().tolist()) for n in range(len(PAIRS))]
    assert written == list(content.values())


def test_a_t5_reads_labels_in_another_order_and_no_other_texts_of_them(text_data, tmp_path):
    path, row = tmp_path / "table.yaml", {"like": "rte", "labels": ["not_entailment", "entailment"]}
    path.write_text(json.dumps({"rte": {**row, "text_form": {"reads": "{sentence1}"}}}))
    sets = predictor(text_data, text_data / "rte.pt", ON_CPU, path).choose("test").sets
    assert [one.key for one in sets] == ["rte", "axb"]
    path.write_text(json.dumps({"rte": {**row, "text_form": {"reads": "{sentence1}", "writes": row["labels"][::-1]}}}))
    with refused("rte: labels"):
        predictor(text_data, text_data / "rte.pt", ON_CPU, path)
