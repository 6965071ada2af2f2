"""`mtmoe upcycle` writes a sparse checkpoint, and loses none."""

from functools import partial

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.sharding import expert_folder
from tests.golden.old_runs import OLD
from tests.helpers.invoked import mtmoe
from tests.helpers.refused import refused
from tests.helpers.states import trained, write_in_parts

upcycle = partial(mtmoe, "upcycle")

DENSE = OLD / "dense" / "checkpoint_last.pt"


def test_what_is_there_is_overwritten_only_when_told(tmp_path):
    sparse = tmp_path / "sparse.pt"
    assert upcycle(DENSE, sparse, "--num-experts", 2).startswith(f"{sparse}: 2 experts per layer, with the optimizer")
    write_in_parts(sparse, *trained(4), 2)
    before = sparse.read_bytes()
    with refused("SPARSE", "--overwrite"):
        upcycle(DENSE, sparse, "--num-experts", 2)
    assert sparse.read_bytes() == before and expert_folder(sparse).exists()
    with refused("SPARSE"):
        upcycle(sparse, sparse, "--num-experts", 2, "--overwrite")
    upcycle(DENSE, sparse, "--num-experts", 3, "--overwrite")
    state = file_io.load(str(sparse))["model"]
    assert {len(value) for key, value in state.items() if ".experts." in key} == {3}
    assert not expert_folder(sparse).exists()


def test_options_are_those_of_the_sparse_models_and_reach_the_one_that_is_made(tmp_path):
    shown = upcycle("--help")
    given = ("--expert-interval", 1, "--base-training", "prices", "--price-memory", 0.5)
    levers = ("--expert-dropout", 0.3, "--shared-expert-dim", 6, "--expert-reinit-ratio", 0.25)
    assert all(f"{flag} " in shown for flag in ("--num-experts", "--task-names", *given[::2], *levers[::2]))
    assert not any(flag in shown for flag in ("SUPPRESS", "--heads", "--dense-updates", "--encoder-layers"))
    upcycle(DENSE, tmp_path / "sparse.pt", "--num-experts", 2, *given, *levers)
    options = file_io.load(str(tmp_path / "sparse.pt"))["cfg"]["model"]
    assert (options["expert_interval"], options["base_training"], options["price_memory"]) == (1, "prices", 0.5)
    assert tuple(options[flag[2:].replace("-", "_")] for flag in levers[::2]) == levers[1::2]
    assert (options["expert_gates"], options["expert_combine"]) == ("base", "preserving")  # by default
