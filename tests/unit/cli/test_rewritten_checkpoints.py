"""`mtmoe reshard`, `average` and `upcycle` write a checkpoint made of others, and lose none."""

from functools import partial

import pytest
import torch

from fairseq_mtmoe.checkpoints import file_io, rewriting
from fairseq_mtmoe.checkpoints.assemble import load_shared_part, whole
from fairseq_mtmoe.checkpoints.sharding import expert_folder
from fairseq_mtmoe.core.errors import UserError
from tests.golden.runs import FROZEN
from tests.helpers.invoked import mtmoe
from tests.helpers.refused import refused
from tests.helpers.states import assert_same, files_of, trained, write_in_parts

reshard, average, upcycle = (partial(mtmoe, name) for name in ("reshard", "average", "upcycle"))
DENSE = FROZEN / "dense" / "checkpoint_last.pt"


# ---- experts in other files ----


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path, (state, parameters) = tmp_path_factory.mktemp("run") / "checkpoint_last.pt", trained(4)
    write_in_parts(path, state, parameters, 2)
    return path, state


def test_experts_go_to_other_files_and_back(checkpoint, tmp_path):
    source, state = checkpoint
    one, parts = tmp_path / "one.pt", tmp_path / "parts.pt"
    assert reshard(source, one, "--single-file") == f"{one}: all experts in one file\n"
    assert_same(load_shared_part(one), state)
    output = reshard(one, parts, "--experts-per-file", 3)
    assert output == f"{parts}: experts in 2 files in {tmp_path / 'parts.experts'}\n"
    assert_same(whole(parts, load_shared_part(parts)), state)
    assert "in 1 file in" in reshard(source, parts, "--experts-per-file", 4, "--overwrite")
    assert [file.name for file in files_of(parts)] == ["0-3.pt"]
    reshard(source, parts, "--single-file", "--overwrite")
    assert not expert_folder(parts).exists()
    assert_same(load_shared_part(parts), state)


def test_what_cannot_be_resharded_is_one_sentence_and_no_checkpoint_is_lost(checkpoint, tmp_path):
    (source, state), dense = checkpoint, tmp_path / "dense.pt"
    torch.save({"model": {"encoder.layers.1.fc1.weight": torch.ones(2, 2)}}, dense)
    for given, to, options, name in (
        (source, "out.pt", ["--single-file", "--experts-per-file", 2], "--experts-per-file"),
        (source, "out.pt", ["--experts-per-file", 5], "--experts-per-file"),
        (dense, "out.pt", ["--single-file"], "dense.pt"), (source, source, ["--single-file", "--overwrite"], "OUT"),
        (source, "dense.pt", ["--single-file"], "OUT"),
    ):  # fmt: skip
        with refused(name):
            reshard(given, tmp_path / to, *options)
    assert list(tmp_path.iterdir()) == [dense]
    assert_same(whole(source, load_shared_part(source)), state)


# ---- means ----


@pytest.fixture
def run(tmp_path):
    """A folder with three checkpoints of epochs, the first in one file and the others in parts."""
    torch.save(trained(4, seed=1)[0], tmp_path / "checkpoint1.pt")
    for number, processes in ((2, 2), (3, 4)):
        write_in_parts(tmp_path / f"checkpoint{number}.pt", *trained(4, seed=number), processes)
    return tmp_path


def test_named_checkpoints_and_the_newest_of_a_folder(run):
    """With the spelling of fairseq's script: all inputs after one `--inputs`."""
    paths = {number: run / f"checkpoint{number}.pt" for number in (1, 2, 3)}
    output, newest = run / "average.pt", ("--inputs", run, "--num-epoch-checkpoints")
    shown = average("--inputs", paths[3], paths[1], "--output", output)
    assert shown == f"{output}: the mean of {paths[3]}, {paths[1]}; one file, without optimizer state\n"
    assert_same(load_shared_part(output), rewriting.average([paths[3], paths[1]]))
    with refused("--output"):
        average(*newest, 3, "--output", paths[3], "--overwrite")
    write_in_parts(output, *trained(4, seed=4), 2)
    for options, numbers in (([2, "--checkpoint-upper-bound", 2], (2, 1)), ([3], (3, 2, 1))):
        average(*newest, *options, "--output", output, "--overwrite")
        assert_same(load_shared_part(output), rewriting.average([paths[number] for number in numbers]))
        assert not expert_folder(output).exists()


def test_wrong_options_of_means_are_one_sentence(tmp_path):
    for options, name in (
        (["--num-epoch-checkpoints", 1, "--num-update-checkpoints", 1], "--num-epoch-checkpoints"),
        (["--checkpoint-upper-bound", 1], "--checkpoint-upper-bound"),
        (["--num-epoch-checkpoints", 1, "more"], "--inputs"),
    ):  # fmt: skip
        with refused(name):
            average("--inputs", tmp_path, "--output", tmp_path / "out.pt", *options)
    with pytest.raises(UserError, match=r"checkpoint_2_500\.pt"):
        average("--inputs", tmp_path, "--output", tmp_path / "out.pt", "--num-update-checkpoints", 1)
    assert not list(tmp_path.iterdir())


# ---- experts that are copies ----


def test_a_sparse_checkpoint_is_overwritten_only_when_told(tmp_path):
    sparse = tmp_path / "sparse.pt"
    write_in_parts(sparse, *trained(4), 2)
    with refused("SPARSE"):
        upcycle(DENSE, sparse, "--num-experts", 2)
    assert expert_folder(sparse).exists()
    shown = upcycle(DENSE, sparse, "--num-experts", 3, "--overwrite")
    assert shown.startswith(f"{sparse}: 3 experts per layer, with the optimizer")
    state = file_io.load(str(sparse))["model"]
    assert {len(value) for key, value in state.items() if ".experts." in key} == {3}
    assert not expert_folder(sparse).exists()


def test_options_are_those_of_the_sparse_models_and_reach_the_one_that_is_made(tmp_path):
    shown = upcycle("--help")
    given = ("--expert-interval", 1, "--base-evaluation", "greedy", "--price-memory", 0.5)
    levers = ("--expert-dropout", 0.3, "--gate-lr-factor", 3.0)
    assert all(f"{flag} " in shown for flag in ("--num-experts", "--task-names", *given[::2], *levers[::2]))
    assert not any(flag in shown for flag in ("SUPPRESS", "--heads", "--dense-updates", "--encoder-layers"))
    upcycle(DENSE, tmp_path / "sparse.pt", "--num-experts", 2, *given, *levers)
    options = file_io.load(str(tmp_path / "sparse.pt"))["cfg"]["model"]
    assert (options["expert_interval"], options["base_evaluation"], options["price_memory"]) == (1, "greedy", 0.5)
    assert tuple(options[flag[2:].replace("-", "_")] for flag in levers[::2]) == levers[1::2]
    assert (options["expert_gates"], options["expert_combine"]) == ("base", "preserving")  # by default
