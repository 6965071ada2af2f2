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
from fairseq_mtmoe.evaluation.predictor import Inference, Predictor, choose_sets
from fairseq_mtmoe.task_types import task_type_of
from tests.golden.old_runs import OLD
from tests.helpers.benchmark import make_encoder, save_untrained

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
    write(
        folder / "RTE/test.jsonl",
        [json.dumps({"premise": a, "hypothesis": b, "idx": n}) for n, (a, b) in enumerate(PAIRS)],
    )
    write(
        folder / "AX-b/AX-b.jsonl",
        [json.dumps({"sentence1": a, "sentence2": b, "idx": n}) for n, (a, b) in enumerate(PAIRS)],
    )
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
    arguments = [
        "predict",
        str(data),
        "--path",
        str(data / "checkpoint.pt"),
        "--batch-size",
        "2",
        "--cpu",
        *map(str, arguments),
    ]
    return CliRunner().invoke(commands, arguments)


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
    rule = (
        "one that has nothing else to lose, such as notes.txt" if len(names) > 1 else "empty, or given with --overwrite"
    )
    assert str(result.exception) == f"`the output folder` must be {rule}, but is '{tmp_path}' instead."
    assert sorted(path.name for path in tmp_path.iterdir()) == names and (tmp_path / "RTE.tsv").read_text() == "old"


def test_nothing_is_written_where_a_file_is_wrong(data, tmp_path):
    write(tmp_path / "MNLI/test_matched.tsv", ["index\tsentence1\tsentence2", "0\ta\tb"])
    write(tmp_path / "RTE/test.tsv", ["index\tsentence1\tsentence2", "0\ta"])
    (tmp_path / "checkpoint.pt").symlink_to(data / "checkpoint.pt")
    result = predict(tmp_path, "--out", tmp_path / "out")
    assert isinstance(result.exception, UserError) and "line 2: must have 3 fields, but has 2" in str(result.exception)
    assert not any("out" in path.name for path in tmp_path.iterdir())


def test_nothing_to_predict(data):
    predictor = Predictor(str(data), str(data / "checkpoint.pt"), ON_CPU)
    with pytest.raises(
        UserError, match=r"must have the valid data of a task of the model \(mnli, rte, multirc, stsb\)"
    ):
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
    with pytest.raises(
        UserError, match=r"`mine: submissions: file` must be another one than that of rte, but is 'RTE.tsv'"
    ):
        predictor.choose("test")


def test_a_head_of_another_size_predicts_nothing(data):
    rows = Predictor(str(data), str(data / "checkpoint.pt"), ON_CPU).table
    choice = choose_sets(
        data, rows, {"rte": HeadSize(2), "mnli": HeadSize(2)}, "test", lambda row: task_type_of(row).head
    )
    assert [one.key for one in choice.sets] == ["rte", "superglue_rte", "axb"]
    assert "mnli" in choice.headless and "ax" in choice.headless


def test_weights_that_are_not_finite(data, tmp_path):
    state = torch.load(data / "checkpoint.pt")
    state["model"]["heads.rte.bias"][0] = float("nan")
    torch.save(state, tmp_path / "nan.pt")
    predictor = Predictor(str(data), str(tmp_path / "nan.pt"), ON_CPU)
    sets = [one for one in predictor.choose("test").sets if one.head == "rte"]
    with pytest.raises(UserError, match=r"nan.pt` must give finite numbers for rte, but does not"):
        predictor.predict(sets[0], *predictor.read(sets[:1]))


def test_a_checkpoint_of_another_task(data):
    with pytest.raises(
        UserError, match=r"must be a checkpoint of language understanding \(glue, text_to_text\), but is 'translation_h"
    ):
        Predictor(str(data), str(OLD / "sparse" / "checkpoint_last.pt"), ON_CPU)


def test_a_pretrained_encoder_is_no_checkpoint(data):
    result = CliRunner().invoke(commands, ["predict", str(data), "--path", str(data / "encoder.pt"), "--cpu"])
    assert str(result.exception) == (
        f"`{data / 'encoder.pt'}` must be a checkpoint of a run, but is none; a file of `mtmoe import-hf` is what a "
        "run begins with, and a source's file is for `--pemt-sources`."
    )
    assert not (data / "predictions" / "encoder-test").exists()
