"""`mtmoe reshard`, `average` and `upcycle` write a checkpoint made of others, and lose none."""

from functools import partial

import pytest
import torch

from fairseq_mtmoe.checkpoints import file_io, rewriting
from fairseq_mtmoe.checkpoints.assemble import load_shared_part, whole
from fairseq_mtmoe.checkpoints.sharding import expert_folder
from fairseq_mtmoe.errors import UserError
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
    (source, state), out, link, dense = checkpoint, *(tmp_path / f"{name}.pt" for name in ("out", "link", "dense"))
    torch.save({"model": {"encoder.layers.1.fc1.weight": torch.ones(2, 2)}}, dense)
    link.symlink_to(source)
    single, replaced = ["--single-file"], ["--single-file", "--overwrite"]
    for given, to, options, names in (
        (source, out, [*single, "--experts-per-file", 2], ["--experts-per-file"]),
        (source, out, ["--experts-per-file", 5], ["--experts-per-file"]),
        (dense, out, single, ["dense.pt"]), (tmp_path / "none.pt", out, ["--experts-per-file", 1], ["none.pt"]),
        (source, source.parent / "." / source.name, replaced, ["OUT"]), (source, link, replaced, ["OUT"]),
        (source, dense, single, ["OUT", "--overwrite"]),
    ):  # fmt: skip
        before = dense.read_bytes()
        with refused(*names):
            reshard(given, to, *options)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["dense.pt", "link.pt"]
        assert dense.read_bytes() == before
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
    before, other = paths[3].read_bytes(), run / "other.pt"
    for inputs in ([*newest, 3], ["--inputs", paths[1], paths[3]]):
        with refused("--output"):
            average(*inputs, "--output", paths[3], "--overwrite")
    assert paths[3].read_bytes() == before
    write_in_parts(other, *trained(4, seed=4), 2)
    with refused("--output", "--overwrite"):
        average(*newest, 3, "--output", other)
    for options, numbers, out in (
        ([2], (3, 2), output), ([2, "--checkpoint-upper-bound", 2], (2, 1), output), ([3], (3, 2, 1), other),
    ):  # fmt: skip
        mean = rewriting.average([paths[number] for number in numbers])
        average(*newest, *options, "--output", out, "--overwrite")
        assert_same(load_shared_part(out), mean)
        assert "last_optimizer_state" not in mean and not expert_folder(out).exists()


@pytest.mark.parametrize(
    ("options", "name"),
    [(["--num-epoch-checkpoints", 1, "--num-update-checkpoints", 1], "--num-epoch-checkpoints"),
     (["--checkpoint-upper-bound", 1], "--checkpoint-upper-bound"),
     (["--num-epoch-checkpoints", 1, "more"], "--inputs")],
)  # fmt: skip
def test_wrong_options_of_means_are_one_sentence(tmp_path, options, name):
    with refused(name):
        average("--inputs", tmp_path, "--output", tmp_path / "out.pt", *options)
    for options in (["--num-update-checkpoints", 1], ["--num-epoch-checkpoints", 1, "--checkpoint-upper-bound", 3]):
        with pytest.raises(UserError, match=r"checkpoint_2_500\.pt|checkpoint3\.pt up to 3"):
            average("--inputs", tmp_path, "--output", tmp_path / "out.pt", *options)
    assert not list(tmp_path.iterdir())


# ---- experts that are copies ----


def test_a_sparse_checkpoint_is_overwritten_only_when_told(tmp_path):
    sparse = tmp_path / "sparse.pt"
    write_in_parts(sparse, *trained(4), 2)
    before = sparse.read_bytes()
    for dense, *options in ((DENSE,), (sparse, "--overwrite")):
        with refused("SPARSE"):
            upcycle(dense, sparse, "--num-experts", 2, *options)
    assert sparse.read_bytes() == before and expert_folder(sparse).exists()
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
