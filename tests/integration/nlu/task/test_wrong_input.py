import json
import shutil
from contextlib import contextmanager

import pytest

from fairseq_mtmoe.core.errors import find_user_error
from tests.helpers.benchmark import task_arguments
from tests.helpers.commands import training_arguments
from tests.helpers.refused import refused
from tests.helpers.training import run_here

NEW, FROM = ("--init-encoder", "ENCODER"), "--finetune-from-model"
SPLITS = {"train": [{"file": "Mine/train.tsv"}], "valid": [{"file": "Mine/dev.tsv"}]}
ROW = {"title": "Mine", "description": "Say it.", "kind": "classification", "texts": ["text"], "labels": ["a", "b"],
       "metric": "accuracy", "splits": SPLITS}  # fmt: skip


def with_table(name="mine", **changed):
    return (*NEW, "--glue-tasks", name, "--task-table", json.dumps({name: ROW | changed}))


CASES = {  # and the name of what is wrong
    "a typo": ((*NEW, "--glue-tasks", "cola,rtee"), "--glue-tasks"),
    "an empty file": ((*NEW, "--glue-tasks", "rte"), "RTE/dev.tsv"),
    "no encoder": ((), "--init-encoder"),
    "fairseq's criterion": ((*NEW, "--criterion", "cross_entropy"), "--criterion"),
    "an unknown gate": ((FROM, "TAG", "--glue-tasks", "wic", "--reuse-gate", "mnli"), "--reuse-gate"),
    "a checkpoint of translation": ((FROM, "TRANSLATION"), "translation/checkpoint_last.pt"),
    "a missing checkpoint": ((FROM, "MISSING"), "--init-encoder"),
    "a dense checkpoint": ((FROM, "DENSE"), "--dense-updates"),
    "another combine": ((FROM, "TAG", "--glue-tasks", "wic", "--expert-combine", "paper"), "--expert-combine"),
    "moments of other tasks": (("--restore-file", "TAG", "--glue-tasks", "wic"), "--glue-tasks"),
    "no such split": ((*NEW, "--valid-subset", "dev"), "cola"),
    "a best that is none": ((*NEW, "--best-checkpoint-metric", "cola"), "--best-checkpoint-metric"),
    "batches too small": ((*NEW, "--max-tokens", 3), "--max-tokens"),
    "heating, uncertain": ((*NEW, "--sampling-method", "uncertainty", "--heating-epochs", 3), "--heating-epochs"),
    "the name of an average": (with_table("small"), "table.yaml"),
    "the group of averages": (with_table(metric="f1", group="all"), "table.yaml: mine: group"),
    "an unknown metric": (with_table(metric="acc"), "the metric of mine"),
    "no validation data": (with_table(splits={"train": SPLITS["train"]}), "mine"),
}


@pytest.fixture(scope="module")
def paths(digits, benchmark, tmp_path_factory):
    """The data, an encoder, and checkpoints, by the names that stand for them above."""
    folder = tmp_path_factory.mktemp("wrong")
    data, encoder = shutil.copytree(benchmark, folder / "data"), benchmark / "encoder.pt"
    (data / "RTE" / "dev.tsv").write_text("")
    (data / "Mine").mkdir()
    for name in ("train", "dev"):
        (data / "Mine" / f"{name}.tsv").write_text("text\tlabel\na b\ta\nc\tb\n")
    once = ("--max-update", 1, "--disable-validation")
    for kind in ("tag", "dense"):
        options = ("--init-encoder", encoder, "--glue-tasks", "cola,stsb", "--arch", f"mt_{kind}", *once)
        run_here(task_arguments(data, folder / kind, *options))
    run_here(training_arguments(digits, folder / "translation", *once))
    paths = {kind.upper(): folder / kind / "checkpoint_last.pt" for kind in ("tag", "dense", "translation")}
    return {"DATA": data, "ENCODER": encoder, "MISSING": folder / "nowhere.pt", **paths}


@contextmanager
def refused_at_the_root(name):
    """fairseq raises some errors again as bare exceptions."""
    with refused(name):
        try:
            yield
        except Exception as raised:
            raise (find_user_error(raised) or raised) from None


@pytest.mark.parametrize(("options", "wrong"), CASES.values(), ids=CASES)
def test_wrong_input_is_said_in_a_sentence(options, wrong, paths, tmp_path):
    given = [paths.get(option, option) for option in options]
    if "--task-table" in given:
        (tmp_path / "table.yaml").write_text(given[-1])
        given[-1] = tmp_path / "table.yaml"
    tasks = () if "--glue-tasks" in given else ("--glue-tasks", "cola,stsb")
    with refused_at_the_root(wrong):
        run_here(task_arguments(paths["DATA"], tmp_path / "run", *tasks, "--max-update", 1, *given))
    assert not list(tmp_path.glob("run/*.pt"))


def test_the_criterion_of_several_tasks_is_for_them(digits, tmp_path):
    options = [*training_arguments(digits, tmp_path, "--max-update", 1)]
    start = options.index("--criterion")
    options[start : start + 4] = ["--criterion", "multitask"]
    with refused_at_the_root("--criterion"):
        run_here(options)
