"""What two processes save: stock commands read it, and a process that cannot write costs nothing but the run."""

import functools
import re
import socket
from contextlib import ExitStack

import pytest
import torch
from fairseq import utils
from torch import distributed as dist

from fairseq_mtmoe import register
from fairseq_mtmoe.checkpoints import assemble, file_io
from fairseq_mtmoe.errors import UserError, find_user_error
from fairseq_mtmoe.training import failures
from tests.golden.old_runs import OLD, RUNS
from tests.helpers.commands import PLUGIN, generate, run, start_command
from tests.helpers.digits import make_digit_corpus
from tests.helpers.processes import SECONDS, run_processes
from tests.helpers.training import train_here

OPTIONS = ("--num-experts", 4, "--max-tokens", 250, "--save-interval-updates", 3, "--expert-gates", "base,task")
OPTIONS += ("--shared-expert-dim", 16)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_digit_corpus(tmp_path_factory.mktemp("digits"), train=300, test=20)


def train_two(rank, data, folder, updates):
    return train_here(data, folder, *OPTIONS, "--max-update", updates)["validations"]


@pytest.fixture(scope="module")
def saved(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    validations = run_processes(train_two, 2, corpus, folder, 3)
    assert validations[0] == validations[1]
    return folder, validations[0][-1][0]


def hypotheses(output):
    return re.findall(r"^H-.*$", output, re.MULTILINE)


def test_generation_reads_all_experts(saved, corpus):
    folder, _ = saved
    assert sorted(path.name for path in folder.glob("checkpoint_last.experts/*/*")) == ["0-1.pt", "2-3.pt"]
    whole = folder / "whole.pt"
    run("mtmoe", "reshard", folder / "checkpoint_last.pt", whole, "--single-file")
    from_parts = hypotheses(generate(corpus, folder / "checkpoint_last.pt", "aa"))
    assert len(from_parts) == 20 and from_parts == hypotheses(generate(corpus, whole, "aa"))


def validate(path, data, world_size):
    """The loss that `fairseq-validate` prints, in so many processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = (
        "fairseq-validate", data, *PLUGIN, "--task", "translation_heated", "--lang-pairs", "en-aa,en-bb,en-cc",
        "--encoder-langtok", "tgt", "--decoder-langtok", "--path", path, "--cpu", "--batch-size", 24,
        "--valid-subset", "valid", "--log-format", "simple", "--num-workers", 0,
    )  # fmt: skip
    places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world_size)}
    with ExitStack() as running:
        processes = [
            running.enter_context(start_command(*command, environment={**places, "RANK": str(rank)}))
            for rank in range(world_size)
        ]
        codes = [process.wait(SECONDS) for process in processes]
        output = processes[0].out() + processes[0].err()
    assert codes == [0] * world_size, output
    return float(re.findall(r"valid .*\| loss ([\d.]+)", output)[-1])


def test_validation_is_the_same_in_any_number_of_processes(saved, corpus):
    """Three pairs of three batches each: the last of them leaves one process without."""
    folder, in_training = saved
    found = [validate(folder / "checkpoint_last.pt", corpus, world_size) for world_size in (1, 2)]
    assert found == pytest.approx([in_training] * 2, abs=2e-3)


# ---- what cannot be written ----


def a_full_disk_in_the_second(rank):
    if rank == 1:

        def refuse(path, content):
            raise UserError(f"`{path}` cannot be written: No space left on device.")

        assemble.write_shard = refuse


def a_fault_in_the_first(rank):
    if rank == 0:

        def fail(*args, **kwargs):
            raise ValueError("Nobody foresaw this.\nAnd more.")

        file_io.save = fail


def no_memory_in(rank_that_fails, rank):
    if rank == rank_that_fails:

        def fail(*args, **kwargs):
            raise MemoryError(f"no memory in {rank}")

        utils.move_to_cpu = fail


def a_folder_of_its_own_in_the_second(rank):
    if rank == 1:
        write = assemble.write_shard
        assemble.write_shard = lambda folder, content: write(f"{folder}/elsewhere", content)


def go_on(rank, data, folder, fail):
    """The sentence that ends a run which cannot save any more."""
    register()
    fail(rank)
    try:
        train_two(rank, data, folder, 6)
    except (UserError, ValueError, MemoryError) as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("fail", "words"),
    [
        (a_full_disk_in_the_second, "No space left on device"),
        (a_fault_in_the_first, "Nobody foresaw this."),
        (functools.partial(no_memory_in, 0), "no memory in 0"),
        (functools.partial(no_memory_in, 1), "no memory in 1"),
        (a_folder_of_its_own_in_the_second, "`--save-dir` must be one folder that all machines of the run share"),
    ],
)
def test_a_save_that_fails_in_one_process_ends_all_and_costs_nothing(fail, words, corpus, tmp_path):
    run_processes(train_two, 2, corpus, tmp_path, 3)
    before = {path: path.read_bytes() for path in tmp_path.glob("checkpoint*/**/*.pt")}
    before |= {path: path.read_bytes() for path in tmp_path.glob("*.pt")}
    assert len(before) == 3 * 3  # last, best and the interval's, in three files each
    for sentence in run_processes(go_on, 2, corpus, tmp_path, fail):
        assert words in sentence
    assert all(path.read_bytes() == content for path, content in before.items())
    assert {path.name for path in tmp_path.glob("*.pt")} == {path.name for path in before if path.parent == tmp_path}


# ---- what it costs ----


def watched(rank, data, folder):
    """The names of all tensors that this process copies, and by which groups it agrees with others on a save."""
    copied, groups = [], set()

    def names(value, path=""):
        if isinstance(value, dict):
            return [name for key, inner in value.items() for name in names(inner, f"{path}/{key}")]
        return [path] if torch.is_tensor(value) else []

    def watch(module, name, note):
        original = getattr(module, name)
        setattr(module, name, lambda *args, **kwargs: note(*args, **kwargs) or original(*args, **kwargs))

    backend = dist.get_backend
    dist.get_backend = lambda group=None: "nccl" if group is None else backend(group)  # as on GPUs
    watch(utils, "move_to_cpu", lambda state: copied.extend(names(state)))
    for name in ("broadcast_object_list", "all_gather_object"):
        watch(dist, name, lambda *args, group=None, **kwargs: groups.add(group))
    train_here(data, folder, "--num-experts", 2, "--max-tokens", 120, "--max-update", 1)
    beside = failures.between_hosts()
    assert groups == {beside} and beside is not dist.group.WORLD and dist.get_backend(beside) == "gloo"
    return copied


def test_processes_copy_what_they_write_and_agree_beside_the_gpus(corpus, tmp_path):
    """Four with two experts: the third and the fourth are replicas, who write nothing."""
    first, second, *replicas = run_processes(watched, 4, corpus, tmp_path)
    assert replicas == [[], []]
    experts = {name for name in first if ".moe.experts." in name}
    assert experts and {name for name in second if name.startswith("/model")} == experts
    assert all(".moe.experts." in name for name in second)


def refused(rank, data, options):
    with pytest.raises(Exception) as caught:
        train_here(data, *options)
    return str(find_user_error(caught.value))


def test_a_whole_checkpoint_of_another_size_is_named_where_each_process_takes_its_share(tmp_path):
    path = str(OLD / "sparse" / "checkpoint_last.pt")
    options = (tmp_path, *RUNS["sparse"], "--restore-file", path, "--encoder-embed-dim", 16)
    right = "`--encoder-embed-dim` must be 8 and `--decoder-embed-dim` 8"
    sentence = f"{right} to load `{path}`, but they are 16 and 16 instead."
    assert run_processes(refused, 2, OLD / "data", options) == [sentence, sentence]
