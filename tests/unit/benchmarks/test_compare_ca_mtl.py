"""CA-MTL's evidence: rows that differ in one thing, new tasks from the right checkpoints, what was trained on."""

import itertools
import sys
from pathlib import Path

import pytest

from fairseq_mtmoe.analysis.run_log import FILE_NAME, RunLog

MODULES = ("compare_ca_mtl", "compare_training", "glue_runs", "training_report", "training_systems")


@pytest.fixture
def study():
    """The script, which imports others of its folder by name."""
    import compare_ca_mtl

    yield compare_ca_mtl
    for name in MODULES:
        sys.modules.pop(name)


@pytest.fixture
def plan(study):
    return study.glue_plan(Path("/data/glue"), Path("/data/encoder.pt"), Path("/runs"), 1000, 100, 5e-5)


def options_of(command):
    """The options of a command and the values that win; True for one without."""
    given = {}
    for name, value in itertools.pairwise([*command, "--"]):
        if name.startswith("--") and name != "--save-dir":
            given[name] = True if value.startswith("--") else value
    return given


def differences(study, plan, one, other):
    first, second = (options_of(study.command_for(plan, run)) for run in (one, other))
    return {name: second.get(name) for name in first | second if first.get(name) != second.get(name)}


def test_the_rows_of_the_ablation_add_one_thing_after_the_other(study, plan):
    rows = list(study.mixtures(plan, 1))
    assert [run.system for run in rows] == list(study.ABLATION)
    steps = [differences(study, plan, one, other) for one, other in itertools.pairwise(rows[:5])]
    assert steps == [
        {"--conditional": "attention"},
        {"--conditional": "attention,bottleneck"},
        {"--conditional": "attention,bottleneck,alignment,norm"},
        {"--sampling-method": "uncertainty"},
    ]
    assert differences(study, plan, rows[0], rows[5]) == {"--sampling-method": "uncertainty"}
    assert set(study.PAPER) == {run.system for run in rows[:5]}


def test_single_tasks_see_as_many_examples_of_each_task(study, plan):
    single = list(study.single_tasks(plan, 1))
    assert [run.tasks for run in single] == [(task,) for task in study.TASKS]
    assert sum(run.updates for run in single) == plan.updates


def test_new_tasks_differ_in_where_they_begin(study, plan):
    runs = {run.system: run for run in study.new_tasks(plan, 2) if run.share == 0.01}
    assert set(runs) == {*(f"from_{start}" for start in study.STARTS), "from_mtl", "from_encoder"}
    begins = "/runs/ca_mtl-2/with_sick_{}.pt"
    assert differences(study, plan, runs["from_rte"], runs["from_mean"]) == {
        "--finetune-from-model": begins.format("mean")
    }
    found = options_of(study.command_for(plan, runs["from_rte"]))
    expected = {"--finetune-from-model": begins.format("rte"), "--train-share": "sick=0.01", "--train-share-seed": "2"}
    assert {name: found[name] for name in expected} == expected and found["--freeze-layers"] == "0"
    assert "--init-encoder" not in found
    assert differences(study, plan, runs["from_mtl"], runs["from_encoder"]) == {
        "--finetune-from-model": None, "--init-encoder": "/data/encoder.pt",
    }  # fmt: skip


def test_a_task_is_added_to_the_mixture_of_the_same_seed(study, plan):
    run = next(run for run in study.new_tasks(plan, 3) if run.system == "from_xavier")
    command = study.add_task_command(plan, run)
    assert command[:4] == [
        "mtmoe",
        "add-task",
        "/runs/ca_mtl-3/checkpoint_last.pt",
        "/runs/ca_mtl-3/with_sick_xavier.pt",
    ]
    assert options_of(command) == {
        "--task": "sick", "--embedding-from": "xavier", "--seed": "3", "--overwrite": True,
    }  # fmt: skip


def test_new_tasks_are_scored_on_the_test_set(study, plan):
    from glue_runs import validation_of

    mixture, new = next(study.mixtures(plan, 1)), next(study.new_tasks(plan, 1))
    assert "--valid-subset" not in validation_of(plan, mixture)
    assert options_of(validation_of(plan, new))["--valid-subset"] == "test"


def test_runs_have_names_of_their_own_and_portable_commands(study, plan):
    from glue_runs import portable

    runs = [run for seed in (1, 2) for stage in study.STAGES.values() for run in stage(plan, seed)]
    assert len({run.name for run in runs}) == len(runs)
    for run in runs:
        assert not [word for word in portable(plan, study.command_for(plan, run)) if word.startswith("/")]


def test_what_was_trained_on_is_in_the_run_log(study, plan, tmp_path):
    run = next(study.mixtures(plan, 1))
    log = RunLog(tmp_path / FILE_NAME)
    log.write("run", sizes={"rte": 2000, "cola": 20_000})
    uniform = study.trained_on(tmp_path, run)
    assert uniform["share_of_data"] == pytest.approx((2000 + 16_000) / 22_000)  # 1000 updates of 32, a half of each
    assert uniform["task_shares"] == {"rte": 0.5, "cola": 0.5}
    for update, share in ((10, 0.1), (20, 0.15)):
        log.write("selection", update=update, trained={"rte": 30, "cola": 10}, relative_entropy={}, share_of_data=share)
    assert study.trained_on(tmp_path, run) == {"share_of_data": 0.15, "task_shares": {"rte": 0.75, "cola": 0.25}}


def test_in_translation_rows_differ_in_sampling_and_norms(study, tmp_path):
    from training_systems import SETTINGS, train_command

    (tmp_path / "train.en-de.en.idx").touch()
    systems = {system.name: system for system in study.translation_systems()}
    found = {
        name: options_of(train_command(system, SETTINGS["multi30k"], tmp_path, Path("run"), 1, 4))
        for name, system in systems.items()
    }
    assert len(found) == 8

    def changed(one, other):
        return {n: found[other].get(n) for n in found[one] | found[other] if found[one].get(n) != found[other].get(n)}

    for name in ("dense", "sparse"):
        assert changed(name, f"{name}_uncertainty") == {"--sampling-method": "uncertainty"}
        assert set(changed(name, f"{name}_heated")) == {"--heating-coefficient", "--heating-epochs"}
        assert changed(name, f"{name}_norm") == {"--conditional": "norm"}
    assert changed("dense", "sparse") == {"--arch": "base_moe", "--num-experts": "8"}
