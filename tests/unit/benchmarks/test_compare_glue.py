"""The comparison of multi-task encoders: rows that differ in one thing, equal examples, portable commands."""

import itertools
import sys
from pathlib import Path

import pytest

PLACES = ("--save-dir", "--finetune-from-model")


@pytest.fixture
def study():
    """The script, which imports others of its folder by name."""
    import compare_glue

    yield compare_glue
    for name in ("compare_glue", "compare_training", "glue_runs"):
        sys.modules.pop(name)


@pytest.fixture
def plan(study):
    return study.plan_of(Path("/data/glue"), Path("/data/encoder.pt"), Path("/runs"), 1000, 100, 5e-5)


def options_of(command):
    """The options of a command and their values, folders aside; True for one without."""
    given = {}
    for name, value in itertools.pairwise([*command, "--"]):
        if name.startswith("--") and name not in PLACES:
            given[name] = True if value.startswith("--") else value
    return given


def differences(study, plan, one, other):
    first, second = (options_of(study.command_of(plan, run)) for run in (one, other))
    return {name: second.get(name) for name in first | second if first.get(name) != second.get(name)}


def test_the_systems_differ_in_their_architecture_alone(study, plan):
    dense, tag, switch, *_ = study.first_stage(plan, 1)
    assert differences(study, plan, dense, tag) == {"--arch": "mt_tag_minilm"}
    assert differences(study, plan, dense, switch) == {"--arch": "mt_switch_minilm"}
    assert differences(study, plan, tag, study.other_combine(plan, 1)) == {"--expert-combine": "paper"}


def test_single_task_sees_each_tasks_examples_as_often(study, plan):
    _, _, _, *single = study.first_stage(plan, 1)
    assert [run.tasks for run in single] == [(task,) for task in study.SIZES]
    assert sum(run.updates for run in single) == pytest.approx(plan.updates, abs=len(single) / 2)
    rte, mrpc = single[:2]
    assert mrpc.updates / rte.updates == pytest.approx((3668 / 2490) ** 0.5, rel=0.02)
    assert set(differences(study, plan, rte, mrpc)) <= {
        "--glue-tasks", "--max-update", "--total-num-update", "--warmup-updates",
    }  # fmt: skip


def test_new_tasks_begin_with_the_gate_or_without(study, plan):
    reuse, at_random, dense, alone = list(study.second_stage(plan, 2))[:4]
    assert differences(study, plan, reuse, at_random) == {"--reuse-gate": None}
    assert differences(study, plan, dense, alone) == {"--init-encoder": "/data/encoder.pt"}
    assert "/runs/mt_tag-2/checkpoint_last.pt" in study.command_of(plan, reuse)
    assert options_of(study.command_of(plan, reuse))["--train-share"] == "sick=0.01"


def test_runs_have_names_of_their_own(study, plan):
    names = [
        run.name for seed in (1, 2) for stage in (study.first_stage, study.second_stage) for run in stage(plan, seed)
    ]
    assert len(set(names)) == len(names)


def test_commands_hold_no_folder_of_the_machine(study, plan):
    import glue_runs

    for run in (*study.first_stage(plan, 1), *study.second_stage(plan, 1)):
        words = glue_runs.portable(plan, study.command_of(plan, run))
        assert not [word for word in words if word.startswith("/")]
        assert words[1] == "GLUE_DIR"
