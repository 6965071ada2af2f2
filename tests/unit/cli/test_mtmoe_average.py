"""`mtmoe average` writes the mean of checkpoints as one file that fairseq's commands read."""

from functools import partial

import pytest
import torch

from fairseq_mtmoe.checkpoints.assemble import load_shared_part
from fairseq_mtmoe.checkpoints.sharding import expert_folder
from fairseq_mtmoe.errors import UserError
from tests.helpers.invoked import mtmoe
from tests.helpers.refused import refused
from tests.helpers.states import trained, write_in_parts

average = partial(mtmoe, "average")


@pytest.fixture
def run(tmp_path):
    """A folder with three checkpoints of epochs, the first in one file and the others in parts."""
    torch.save(trained(4, seed=1)[0], tmp_path / "checkpoint1.pt")
    for number, processes in ((2, 2), (3, 4)):
        write_in_parts(tmp_path / f"checkpoint{number}.pt", *trained(4, seed=number), processes)
    return tmp_path


def mean_of(*numbers):
    models = [trained(4, seed=number)[0]["model"] for number in numbers]
    return {key: sum(model[key] for model in models) / len(models) for key in models[0]}


def assert_mean(path, *numbers):
    state = load_shared_part(path)
    assert "last_optimizer_state" not in state and not expert_folder(path).exists()
    for key, value in mean_of(*numbers).items():
        torch.testing.assert_close(state["model"][key], value)


def test_named_checkpoints_and_the_newest_of_a_folder(run):
    """With the spelling of fairseq's script: all inputs after one `--inputs`."""
    output = run / "average.pt"
    names = [run / "checkpoint3.pt", run / "checkpoint1.pt"]
    shown = average("--inputs", *names, "--output", output)
    assert shown == f"{output}: the mean of {names[0]}, {names[1]}; one file, without an optimizer's state\n"
    assert_mean(output, 3, 1)
    average("--output", output, "--num-epoch-checkpoints", 2, "--inputs", run, "--overwrite")
    assert_mean(output, 3, 2)
    last = ("--num-epoch-checkpoints", 2, "--checkpoint-upper-bound", 2)
    average("--inputs", run, *last, "--output", output, "--overwrite")
    assert_mean(output, 2, 1)
    three = ("--inputs", run, "--num-epoch-checkpoints", 3, "--output", run / "checkpoint3.pt")  # its own input
    with refused("--output", "--overwrite"):
        average(*three)
    average(*three, "--overwrite")
    assert_mean(run / "checkpoint3.pt", 3, 2, 1)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["--num-epoch-checkpoints", 1, "--num-update-checkpoints", 1], "--num-epoch-checkpoints"),
        (["--checkpoint-upper-bound", 1], "--checkpoint-upper-bound"),
        (["--num-epoch-checkpoints", 1, "more"], "--inputs"),
    ],
)
def test_wrong_options_are_one_sentence(tmp_path, options, name):
    with refused(name):
        average("--inputs", tmp_path, "--output", tmp_path / "out.pt", *options)
    for options in (["--num-update-checkpoints", 1], ["--num-epoch-checkpoints", 1, "--checkpoint-upper-bound", 3]):
        with pytest.raises(UserError, match=r"checkpoint_2_500\.pt|checkpoint3\.pt up to 3"):
            average("--inputs", tmp_path, "--output", tmp_path / "out.pt", *options)
    assert not list(tmp_path.iterdir())
