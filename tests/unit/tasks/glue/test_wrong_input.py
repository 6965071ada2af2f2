"""Wrong input to a run on a benchmark: one sentence each, and no checkpoint."""

import re

import pytest

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.errors import find_user_error
from fairseq_mtmoe.sparsify.upcycle import upcycle
from tests.helpers.benchmark import make_benchmark, make_encoder, task_arguments
from tests.helpers.commands import training_arguments
from tests.helpers.training import run_here

ROW = """{name}:
  title: Mine
  description: Say it.
  kind: {kind}
  texts: [text]
  labels: {labels}
  metric: {metric}
  splits: {splits}
"""
BOTH = "{train: [{file: Mine/train.tsv}], valid: [{file: Mine/dev.tsv}]}"


def with_table(name="mine", labels="[a, b]", metric="accuracy", splits=BOTH, kind="classification"):
    """Options that need the table, and its text."""
    return ("--init-encoder", "ENCODER", "--task-table", "TABLE", "--glue-tasks", name), ROW.format(**locals())


def begin(kind, *options):
    """Options of a run that begins with a checkpoint."""
    return ("--finetune-from-model", kind, *options), None


def new(*options):
    """Options of a run that begins with the encoder."""
    return ("--init-encoder", "ENCODER", *options), None


ENCODER_FILE = "`{}` must be a file of `mtmoe import-hf`, but is a checkpoint, with which a run begins by `--finetune-f"
OTHER_CHECKPOINT = "`{}` must be a checkpoint of `--task glue`, but has no encoder with a tokenizer"
CASES = {
    "a typo": (new("--glue-tasks", "cola,rtee"), "`--glue-tasks` must be among all, glue, .*, but is 'rtee' instead."),
    "an empty file": (new("--glue-tasks", "rte"), "RTE/dev.tsv` must have examples of RTE, but has none."),
    "another size": (new("--arch", "mt_tag_minilm"), "`--encoder-layers` must be 2, as in the pretrained encoder, but "
                     "is 6 instead: `--arch mt_tag` takes the encoder's sizes, whatever they are."),
    "no encoder": (((), None), "`--init-encoder` must name a file of `mtmoe import-hf`, or `--finetune-from-model` a"),
    "an encoder that is none": ((("--init-encoder", "TRANSLATION"), None), ENCODER_FILE),
    "fairseq's criterion": (new("--criterion", "cross_entropy"), "`--criterion` must be multitask, or pemt for"),
    "an arch of translation": (new("--arch", "base_moe_tiny"), "`--arch` must be a model with a head for each task,"),
    "an unknown gate": (begin("TAG", "--glue-tasks", "wic", "--reuse-gate", "mnli"), "`--reuse-gate` must be among the"
                        " checkpoint's tasks cola, stsb, but is 'mnli' instead."),
    "a gate from nowhere": (new("--reuse-gate", "cola"), "`--reuse-gate` must come with a checkpoint that has the ga"),
    "a checkpoint of translation": (begin("TRANSLATION"), OTHER_CHECKPOINT),
    "a missing checkpoint": (begin("MISSING"), "must be a checkpoint to begin with (`--finetune-from-model`), but th"),
    "a dense checkpoint": (begin("DENSE"), "`--dense-updates` must be above 0 for a dense checkpoint to become sparse"),
    "the gate of all tasks": (begin("SWITCH"), "`--expert-gates` must be switch to load"),
    "other experts": (begin("TAG", "--num-experts", 8), "`--num-experts` must be 4 as in the checkpoint's"),
    "another combine": (begin("TAG", "--glue-tasks", "wic", "--expert-combine", "paper"), "`--expert-combine` must b"),
    "moments of other tasks": ((("--restore-file", "TAG", "--glue-tasks", "wic"), None), "`--glue-tasks` must be cola"),
    "no such split": (new("--valid-subset", "dev"), "`cola` must have a split `dev` in the table of tasks, but has t"),
    "a best that is none": (new("--best-checkpoint-metric", "cola"), "`--best-checkpoint-metric` must be one of loss"),
    "too long": (new("--max-positions", 1000), "`--max-positions` must be at most 24, as in the encoder, but is 1000"),
    "batches too small": (new("--max-tokens", 3), "`--max-tokens` must be at least 4, the length of the shortest trai"),
    "batches too small to validate": (new("--max-tokens-valid", 4), "`--max-tokens`, or in training `--max-tokens-va"),
    "heating, uncertain": (new("--sampling-method", "uncertainty", "--heating-epochs", 3), "`--heating-epochs` m"),
    "an unknown metric": (with_table(metric="acc"), "`the metric of mine` must be one of accuracy, matthews, spearma"),
    "one metric twice": (with_table(metric="accuracy\n  also: [accuracy]"), "`the metrics of mine` must be different"),
    "the name of an average": (with_table("small"), "`the name of a task` must be none of loss, small, all, which"),
    "the group of averages": (with_table(metric="f1\n  group: all"), "`the group of mine` must be none of loss, sm"),
    "nothing to compare": (with_table(metric="text-f1\n  choices: [text, text]", kind="ranking"), "must be one of acc"),
    "no validation data": (with_table(splits="{train: [{file: Mine/train.tsv}]}"), "`mine` must have a split `valid`"),
}  # fmt: skip


@pytest.fixture(scope="module")
def places(digits, tmp_path_factory):
    """The data, an encoder, and checkpoints, by the names that stand for them above."""
    folder = tmp_path_factory.mktemp("wrong")
    data, encoder = folder / "data", folder / "encoder.pt"
    make_benchmark(data, {"train": 16, "dev": 4})
    make_encoder(encoder)
    (data / "RTE" / "dev.tsv").write_text("")
    (data / "Mine").mkdir()
    for name in ("train", "dev"):
        (data / "Mine" / f"{name}.tsv").write_text("text\tlabel\na b\ta\nc\tb\n")
    once = ("--max-update", 1, "--disable-validation")
    for kind in ("tag", "switch", "dense"):
        options = ("--init-encoder", encoder, "--glue-tasks", "cola,stsb", "--arch", f"mt_{kind}", *once)
        run_here(task_arguments(data, folder / kind, *options))
    run_here(training_arguments(digits, folder / "translation", *once))
    checkpoints = {
        kind.upper(): folder / kind / "checkpoint_last.pt" for kind in ("tag", "switch", "dense", "translation")
    }
    return {"DATA": data, "ENCODER": encoder, "MISSING": folder / "nowhere.pt", **checkpoints}


@pytest.mark.parametrize("name", CASES)
def test_wrong_input_is_said_in_a_sentence(name, places, tmp_path):
    (options, table), sentence = CASES[name]
    places = {**places, "TABLE": tmp_path / "table.yaml"}
    if table is not None:
        places["TABLE"].write_text(table)
    given = [places.get(option, option) for option in options]
    tasks = () if "--glue-tasks" in given else ("--glue-tasks", "cola,stsb")
    with pytest.raises(Exception) as raised:
        run_here(task_arguments(places["DATA"], tmp_path / "run", *tasks, "--max-update", 1, *given))
    error = find_user_error(raised.value)
    assert error is not None, repr(raised.value)
    path = re.escape(str(given[-1])) if given else ""
    expected = re.escape(sentence).replace(r"\.\*", ".*").replace(re.escape("{}"), path)
    assert re.search(expected, str(error)) and "\n" not in str(error), error
    assert not list(tmp_path.glob("run/*.pt"))


def test_the_criterion_of_several_tasks_is_for_them(digits, tmp_path):
    options = [*training_arguments(digits, tmp_path, "--max-update", 1)]
    place = options.index("--criterion")
    options[place : place + 4] = ["--criterion", "multitask"]
    with pytest.raises(Exception) as raised:
        run_here(options)
    assert str(find_user_error(raised.value)).startswith("`--criterion multitask` is for `--task glue` and its like")


def test_a_dense_checkpoint_is_upcycled_as_its_sentence_says_and_goes_on(places, tmp_path):
    sparse = upcycle("mt_tag", file_io.load(str(places["DENSE"])), {"num_experts": 3, "expert_combine": "paper"})
    file_io.save(sparse, str(tmp_path / "sparse.pt"))
    options = ("--glue-tasks", "cola,stsb", "--continue-once", tmp_path / "sparse.pt", "--disable-validation")
    options += ("--num-experts", 3, "--expert-combine", "paper", "--max-update", 2)
    found = run_here(task_arguments(places["DATA"], tmp_path / "run", *options))
    assert len(found["losses"]) == 1  # the second update
    assert found["parameters"]["encoder.layers.0.moe.gate.weight"].shape == (2, 3, 16)
