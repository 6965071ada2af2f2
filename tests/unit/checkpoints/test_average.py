"""The mean of checkpoints, as fairseq's `scripts/average_checkpoints.py` defines it."""

import collections

import pytest
import torch

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.average import EPOCHS, UPDATES, average, newest
from fairseq_mtmoe.errors import UserError
from tests.helpers.states import assert_same, trained, write_in_parts


def mean_of(states):
    """That script's loop: the sum in order of the files, float16 in float32, then divided in place."""
    params = collections.OrderedDict()
    for state in states:
        for key, value in state["model"].items():
            value = value.float() if value.dtype == torch.float16 else value
            if key in params:
                params[key] += value
            else:
                params[key] = value.clone()
    for value in params.values():
        value.div_(len(states))
    return {**states[0], "model": params}


def without_optimizer(state):
    return {key: value for key, value in state.items() if key != "last_optimizer_state"}


def halved(state):
    state["model"] = collections.OrderedDict((key, value.half()) for key, value in state["model"].items())
    return state


@pytest.mark.parametrize("half", [False, True])
def test_whole_files_give_the_scripts_result(tmp_path, half):
    states = [trained(4, seed=seed)[0] for seed in (1, 2, 3)]
    states = [halved(state) for state in states] if half else states
    paths = [tmp_path / f"{index}.pt" for index in range(3)]
    for state, path in zip(states, paths, strict=True):
        torch.save(state, path)
    assert_same(average(paths), without_optimizer(mean_of(states)))
    assert_same(average(paths[1:2])["extra_state"], states[1]["extra_state"])


def test_parts_and_whole_files_mix(tmp_path):
    (one, parameters), (two, _), (three, _) = (trained(4, seed=seed) for seed in (1, 2, 3))
    write_in_parts(tmp_path / "1.pt", one, parameters, 4)
    torch.save(two, tmp_path / "2.pt")
    write_in_parts(tmp_path / "3.pt", three, parameters, 2)
    paths = [tmp_path / f"{index}.pt" for index in (1, 2, 3)]
    assert_same(average(paths), without_optimizer(mean_of([one, two, three])))
    assert_same(average(reversed(paths)), without_optimizer(mean_of([three, two, one])))


def test_bfloat16_is_summed_in_float32(tmp_path):
    """Where the script would lose what is added to a larger sum."""
    for index, number in enumerate((256.0, 1.0, 1.0)):
        file_io.save({"model": {"w": torch.tensor([number], dtype=torch.bfloat16)}}, str(tmp_path / f"{index}.pt"))
    mean = average(tmp_path / f"{index}.pt" for index in range(3))["model"]["w"]
    assert mean.dtype == torch.float32 and mean.item() == 86


def test_whole_numbers_stay_whole(tmp_path):
    for index, number in enumerate((2, 5)):
        file_io.save({"model": {"count": torch.tensor([number])}}, str(tmp_path / f"{index}.pt"))
    assert average([tmp_path / "0.pt", tmp_path / "1.pt"])["model"]["count"].tolist() == [3]


@pytest.mark.parametrize(
    "other", [{"v": torch.ones(2)}, {"w": torch.ones(3)}, {"w": torch.ones(2), "v": torch.ones(2)}]
)
def test_other_parameters_are_refused(tmp_path, other):
    for name, model in (("a.pt", {"w": torch.ones(2)}), ("b.pt", other)):
        file_io.save({"model": model}, str(tmp_path / name))
    with pytest.raises(UserError, match=r"b\.pt` must hold the same parameters as `.*a\.pt`"):
        average([tmp_path / "a.pt", tmp_path / "b.pt"])


def test_the_newest_are_those_with_the_highest_numbers(tmp_path):
    names = ("checkpoint2.pt", "checkpoint10.pt", "checkpoint9.pt", "checkpoint_3_40.pt", "checkpoint_12_7.pt")
    for name in (*names, "checkpoint_best.pt", "checkpoint_last.pt", "checkpoint1.pt.old"):
        (tmp_path / name).touch()

    def found(*arguments):
        return [path.name for path in newest(tmp_path, *arguments)]

    assert found(EPOCHS, 2, None) == ["checkpoint10.pt", "checkpoint9.pt"]
    assert found(EPOCHS, 2, 9) == ["checkpoint9.pt", "checkpoint2.pt"]
    assert found(UPDATES, 2, None) == ["checkpoint_3_40.pt", "checkpoint_12_7.pt"]
    for pattern, count, option in ((EPOCHS, 4, "epoch"), (UPDATES, 0, "update")):
        with pytest.raises(UserError, match=f"`--num-{option}-checkpoints` must be from 1 to the [23] such"):
            newest(tmp_path, pattern, count, None)
    with pytest.raises(UserError, match="up to 9, but is 3"):
        newest(tmp_path, EPOCHS, 3, 9)
    with pytest.raises(UserError, match="must be one folder"):
        newest(tmp_path / "none", EPOCHS, 1, None)
