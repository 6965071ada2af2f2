"""What two processes save: stock commands read it, and a process that cannot write costs nothing but the run."""

import functools
import re
import shutil
from contextlib import nullcontext
from unittest.mock import patch

import pytest
from torch import distributed as dist

from fairseq_mtmoe import register
from fairseq_mtmoe.checkpoints import assemble, file_io
from fairseq_mtmoe.core.errors import UserError, find_user_error
from fairseq_mtmoe.report import run_log
from fairseq_mtmoe.training import failures
from tests.golden.runs import FROZEN, RUNS
from tests.helpers.commands import PLUGIN, run, run_joined
from tests.helpers.processes import run_processes
from tests.helpers.training import train_here

OPTIONS = ("--num-experts", 4, "--max-tokens", 250, "--save-interval-updates", 3, "--expert-gates", "base,task")
OPTIONS += ("--log-expert-comm", "--log-interval", 1)


def train_two(rank, data, folder, updates):
    return train_here(data, folder, *OPTIONS, "--max-update", updates)["validations"]


@pytest.fixture(scope="module")
def saved(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    validations = run_processes(train_two, 2, corpus, folder, 3)
    assert validations[0] == validations[1]
    return folder, validations[0][-1][0]


def test_a_run_logs_its_exchanges_in_each_update_and_sums_them_by_layer_before_a_validation(saved):
    events = run_log.read(saved[0])
    summed, validated = (event for event in events if event["event"] in ("expert_comm", "valid"))
    assert (summed["event"], summed["update"], summed["updates"], validated["update"]) == ("expert_comm", 3, 3, 3)
    assert len(summed["layers"]) == 4 and all(layer["bytes"] > 0 for layer in summed["layers"].values())
    logged = [event["expert_comm_ms"] for event in events if event["event"] == "train"]  # rounded to tenths
    assert len(logged) == 3 and min(logged) > 0
    assert sum(logged) == pytest.approx(1000 * sum(layer["seconds"] for layer in summed["layers"].values()), abs=0.2)


def validate(path, data, world_size):
    """The loss that `fairseq-validate` prints, in so many processes."""
    command = (
        "fairseq-validate", data, *PLUGIN, "--task", "translation_heated", "--lang-pairs", "en-aa,en-bb,en-cc",
        "--encoder-langtok", "tgt", "--decoder-langtok", "--path", path, "--cpu", "--batch-size", 8,
        "--valid-subset", "valid", "--log-format", "simple", "--num-workers", 0,
    )  # fmt: skip
    result = run_joined(world_size, *command) if world_size > 1 else run(*command)
    return float(re.findall(r"valid .*\| loss ([\d.]+)", result.stdout + result.stderr)[-1])


def test_validation_is_the_same_in_any_number_of_processes(saved, corpus):
    """Three pairs of three batches each: the last of them leaves one process without."""
    folder, in_training = saved
    found = [validate(folder / "checkpoint_last.pt", corpus, world_size) for world_size in (1, 2)]
    assert found == pytest.approx([in_training] * 2, abs=2e-3)


# ---- what cannot be written ----


def elsewhere(folder, content, write=assemble.write_shard):
    return write(f"{folder}/elsewhere", content)


# The process in which a save fails, what does, how, and what the sentence says.
FAILING = [
    (1, assemble, "write_shard", UserError("`x` cannot be written: No space left."), "No space left."),
    (0, file_io, "save", ValueError("Nobody foresaw this.\nAnd more."), "Nobody foresaw this."),
    (1, assemble, "write_shard", elsewhere, "`--save-dir` must be one folder that all machines of the run share"),
]


def go_on(rank, data, folder):
    """The sentences that end runs which cannot save any more."""
    register()
    sentences = []
    for number, (failing_rank, owner, name, failure, _) in enumerate(FAILING):
        fails = patch.object(owner, name, side_effect=failure) if rank == failing_rank else nullcontext()
        with fails, pytest.raises((UserError, ValueError)) as caught:
            train_two(rank, data, folder / str(number), 6)
        sentences.append(str(caught.value))
    return sentences


def test_a_save_that_fails_in_one_process_ends_all_and_costs_nothing(saved, corpus, tmp_path):
    for number in range(len(FAILING)):
        shutil.copytree(saved[0], tmp_path / str(number))
    before = {path: path.read_bytes() for path in tmp_path.glob("**/*.pt")}
    assert len(before) == 3 * 3 * len(FAILING)  # last, best and the interval's, in three files each
    for sentences in run_processes(go_on, 2, corpus, tmp_path):
        assert all(words in sentence for sentence, (*_, words) in zip(sentences, FAILING, strict=True)), sentences
    assert all(path.read_bytes() == content for path, content in before.items())
    assert {*tmp_path.glob("*/*.pt")} == {path for path in before if path.parent.parent == tmp_path}


def save_as_on_gpus(rank, data, folder):
    """Return whether processes agree on a save by a group that does not use GPUs."""
    backend, groups = dist.get_backend, set()
    dist.get_backend = lambda group=None: "nccl" if group is None else backend(group)

    def note(function, *args, group=None, **kwargs):
        groups.add(group)
        return function(*args, group=group, **kwargs)

    for name in ("broadcast_object_list", "all_gather_object"):
        setattr(dist, name, functools.partial(note, getattr(dist, name)))
    train_here(data, folder, "--num-experts", 2, "--max-tokens", 120, "--max-update", 1)
    beside = failures.between_hosts()
    return groups == {beside} and beside is not dist.group.WORLD and dist.get_backend(beside) == "gloo"


def test_processes_agree_on_a_save_beside_the_gpus(corpus, tmp_path):
    """Of four with two experts, two are replicas and write nothing."""
    assert run_processes(save_as_on_gpus, 4, corpus, tmp_path) == [True] * 4


def refusal(rank, data, options):
    with pytest.raises(Exception) as caught:
        train_here(data, *options)
    return str(find_user_error(caught.value))


def test_a_whole_checkpoint_of_another_size_is_named_where_each_process_takes_its_share(tmp_path):
    path = str(FROZEN / "sparse" / "checkpoint_last.pt")
    options = (tmp_path, *RUNS["sparse"], "--restore-file", path, "--encoder-embed-dim", 16)
    right = "`--encoder-embed-dim` must be 8, but is 16, and `--decoder-embed-dim` must be 8, but is 16"
    assert run_processes(refusal, 2, FROZEN / "data", options) == [f"{right}, to load `{path}`."] * 2
