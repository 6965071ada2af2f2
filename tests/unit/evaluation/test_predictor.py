"""Predictions of an untrained model: which sets, which heads, which files."""

import json

import pytest
import torch
from click.testing import CliRunner
from fairseq import checkpoint_utils

from fairseq_mtmoe import register
from fairseq_mtmoe.backbones.bert.heads import HeadSize
from fairseq_mtmoe.cli.main import commands
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.evaluation.predictor import Predictor, choose_sets
from fairseq_mtmoe.evaluation.stored import Inference
from fairseq_mtmoe.task_types import task_type_of
from tests.golden.old_runs import OLD
from tests.helpers.benchmark import make_encoder, save_untrained
from tests.helpers.refused import refused

PAIRS = [(a, b) for a in ("a b", "d", "j j j") for b in ("c", "e f g", "h", "i a")]
ON_CPU = Inference(batch_size=2, cpu=True)


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The same pairs as test data of seven sets, and `checkpoint.pt`, which has the heads of four tasks."""
    folder = tmp_path_factory.mktemp("unlabelled")
    table = ["index\tsentence1\tsentence2", *(f"{10 + n}\t{a}\t{b}" for n, (a, b) in enumerate(PAIRS))]
    for name in ("MNLI/test_matched.tsv", "diagnostic/diagnostic.tsv", "RTE/test.tsv", "WNLI/test.tsv"):
        write(folder / name, table)
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
    """What is predicted: the content of each file."""
    predictor = Predictor(str(data), str(data / "checkpoint.pt"), ON_CPU)
    sets = predictor.choose("test").sets
    return {
        one.submission.file: predictor.predict(one, read) for one, read in zip(sets, predictor.read(sets), strict=True)
    }


def test_which_sets(data):
    choice = Predictor(str(data), str(data / "checkpoint.pt"), ON_CPU).choose("test")
    heads = {one.key: one.head for one in choice.sets}
    own = {"mnli": "mnli", "rte": "rte", "multirc": "multirc"}
    assert heads == {**own, "ax": "mnli", "superglue_rte": "rte", "axb": "rte"}
    assert (choice.headless, choice.absent) == (["wnli"], ["stsb", "mnli/mismatched"])


def labels(content):
    return [line.split("\t")[1] for line in content.splitlines()[1:]]


def json_labels(content):
    return [json.loads(line)["label"] for line in content.splitlines()]


def test_another_tasks_head_predicts_what_it_predicts_of_its_own(files):
    assert files["AX.tsv"] == files["MNLI-m.tsv"]
    assert json_labels(files["RTE.jsonl"]) == json_labels(files["AX-b.jsonl"]) == labels(files["RTE.tsv"])
    for name in ("MNLI-m.tsv", "RTE.tsv"):
        assert len(set(labels(files[name]))) > 1, "a model that says one thing alone would hide a wrong order"


def test_every_example_has_its_own_prediction(files, data, tmp_path):
    """Batches are of sorted lengths: the lines in another order have the same answers."""
    header, *lines = (data / "MNLI/test_matched.tsv").read_text().splitlines()
    write(tmp_path / "MNLI/test_matched.tsv", [header, *reversed(lines)])
    predictor = Predictor(str(tmp_path), str(data / "checkpoint.pt"), ON_CPU)
    (one,) = predictor.choose("test").sets
    header, *expected = files["MNLI-m.tsv"].splitlines()
    assert [line.split("\t")[0] for line in expected] == [str(10 + n) for n in range(12)]
    assert predictor.predict(one, *predictor.read([one])).splitlines() == [header, *reversed(expected)]


def test_batches_of_so_many_tokens_in_half_precision(data, files):
    predictor = Predictor(str(data), str(data / "checkpoint.pt"), Inference(max_tokens=16, bf16=True, cpu=True))
    chosen = [one for one in predictor.choose("test").sets if one.key == "mnli"]
    counts = []
    content = predictor.predict(chosen[0], *predictor.read(chosen), counts.append)
    assert sum(counts) == len(PAIRS) and len(counts) > 1
    assert [line.split("\t")[0] for line in content.splitlines()] == [
        line.split("\t")[0] for line in files["MNLI-m.tsv"].splitlines()
    ]


def predict(data, *arguments):
    """`mtmoe predict`, in this process."""
    given = ["predict", str(data), "--path", str(data / "checkpoint.pt"), "--batch-size", "2", "--cpu"]
    return CliRunner().invoke(commands, [*given, *map(str, arguments)])


def test_the_command(data, files):
    result = predict(data)
    folder = data / "predictions" / "checkpoint-test"
    assert result.exit_code == 0 and str(folder) in result.stdout
    assert {path.name: path.read_text() for path in folder.iterdir()} == files
    assert "Left out: the model has no head for wnli.\n" in result.stderr
    assert "Left out: there is no test data of stsb, mnli/mismatched.\n" in result.stderr


@pytest.mark.parametrize("names", [["RTE.tsv"], ["RTE.tsv", "notes.txt"]])
def test_a_folder_with_something_in_it(data, tmp_path, names):
    """A made file stays; with `--overwrite` one that is no prediction does."""
    for name in names:
        (tmp_path / name).write_text("old")
    result = predict(data, "--out", tmp_path, *(["--overwrite"] if len(names) > 1 else []))
    assert isinstance(result.exception, UserError) and result.exception.names == ("the output folder",)
    assert sorted(path.name for path in tmp_path.iterdir()) == names and (tmp_path / "RTE.tsv").read_text() == "old"


def test_nothing_is_written_where_a_file_is_wrong(data, tmp_path):
    write(tmp_path / "MNLI/test_matched.tsv", ["index\tsentence1\tsentence2", "0\ta\tb"])
    write(tmp_path / "RTE/test.tsv", ["index\tsentence1\tsentence2", "0\ta"])
    (tmp_path / "checkpoint.pt").symlink_to(data / "checkpoint.pt")
    result = predict(tmp_path, "--out", tmp_path / "out")
    assert isinstance(result.exception, UserError)
    assert not any("out" in path.name for path in tmp_path.iterdir())


def test_nothing_to_predict(data):
    predictor = Predictor(str(data), str(data / "checkpoint.pt"), ON_CPU)
    with refused(data.name):
        predictor.choose("valid")


def test_validation_scores_what_is_written(data, tmp_path):
    """A regression's values within its bounds: some of the model's are beyond one, some beyond the other."""
    state = torch.load(data / "checkpoint.pt")
    state["model"]["heads.stsb.weight"] *= 100
    torch.save(state, tmp_path / "wide.pt")
    write(
        tmp_path / "STS-B/dev.tsv",
        ["index\tsentence1\tsentence2\tscore", *(f"{n}\t{a}\t{b}\t1" for n, (a, b) in enumerate(PAIRS))],
    )
    predictor = Predictor(str(tmp_path), str(tmp_path / "wide.pt"), ON_CPU)
    sets = predictor.choose("valid").sets
    values = [float(label) for label in labels(predictor.predict(sets[0], *predictor.read(sets)))]
    overrides = {"data": str(tmp_path), "glue_tasks": "stsb"}
    (model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task([str(tmp_path / "wide.pt")], overrides)
    task.load_dataset("valid")
    criterion = task.build_criterion(cfg.criterion).eval()
    sample = task.dataset("valid").collater([task.dataset("valid")[n] for n in range(len(PAIRS))])
    _, _, logged = task.valid_step(sample, model.eval(), criterion)
    assert logged["_stsb_predictions"].tolist() == pytest.approx(values, abs=1e-4)
    assert min(values) == 0 and max(values) == 5


TABLE = """
%s:
  title: Mine
  description: Say it.
  kind: classification
  texts: [sentence1, sentence2]
  labels: [a, b]
  head: rte
  splits:
    test: [{file: WNLI/test.tsv}]
"""


def test_a_users_table(data, tmp_path):
    (tmp_path / "table.yaml").write_text(TABLE % "mine")
    predictor = Predictor(str(data), str(data / "checkpoint.pt"), ON_CPU, str(tmp_path / "table.yaml"))
    sets = predictor.choose("test").sets
    assert (sets[-1].key, sets[-1].head, sets[-1].submission.file) == ("mine", "rte", "mine.tsv")
    (tmp_path / "table.yaml").write_text(TABLE % "mine" + "  submissions: {test: {file: RTE.tsv}}\n")
    predictor = Predictor(str(data), str(data / "checkpoint.pt"), ON_CPU, str(tmp_path / "table.yaml"))
    with refused("mine: submissions: file"):
        predictor.choose("test")


def test_a_head_of_another_size_predicts_nothing(data):
    rows = Predictor(str(data), str(data / "checkpoint.pt"), ON_CPU).table
    heads = {"rte": HeadSize(2), "mnli": HeadSize(2)}
    choice = choose_sets(data, rows, heads, "test", lambda row: task_type_of(row).head)
    assert [one.key for one in choice.sets] == ["rte", "superglue_rte", "axb"]
    assert "mnli" in choice.headless and "ax" in choice.headless


def test_weights_that_are_not_finite(data, tmp_path):
    state = torch.load(data / "checkpoint.pt")
    state["model"]["heads.rte.bias"][0] = float("nan")
    torch.save(state, tmp_path / "nan.pt")
    predictor = Predictor(str(data), str(tmp_path / "nan.pt"), ON_CPU)
    sets = [one for one in predictor.choose("test").sets if one.head == "rte"]
    with refused("nan.pt"):
        predictor.predict(sets[0], *predictor.read(sets[:1]))


def test_a_checkpoint_of_another_task_or_a_pretrained_encoder(data):
    for path in (OLD / "sparse" / "checkpoint_last.pt", data / "encoder.pt"):
        with refused(path.name):
            Predictor(str(data), str(path), ON_CPU)
