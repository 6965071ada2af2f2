"""What two processes save: stock commands read it, and a process that cannot write costs nothing but the run."""

import re
import socket
import subprocess

import pytest

from fairseq_mtmoe import register
from fairseq_mtmoe.checkpoints import expert_files
from fairseq_mtmoe.errors import UserError
from tests.helpers.commands import BIN, ENVIRONMENT, PLUGIN, REPOSITORY, generate, run
from tests.helpers.digits import make_digit_corpus
from tests.helpers.processes import SECONDS, run_processes
from tests.helpers.training import train_here

OPTIONS = ("--num-experts", 4, "--max-tokens", 250, "--save-interval-updates", 3, "--expert-gates", "base,task")


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
        BIN / "fairseq-validate", data, *PLUGIN, "--task", "translation_heated", "--lang-pairs", "en-aa,en-bb,en-cc",
        "--encoder-langtok", "tgt", "--decoder-langtok", "--path", path, "--cpu", "--batch-size", 24,
        "--valid-subset", "valid", "--log-format", "simple", "--num-workers", 0,
    )  # fmt: skip
    places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world_size)}
    processes = [
        subprocess.Popen([str(part) for part in command], env={**ENVIRONMENT, **places, "RANK": str(rank)},
                         cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(world_size)
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * world_size, outputs
    return float(re.findall(r"valid .*\| loss ([\d.]+)", outputs[0])[-1])


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

        expert_files.write_experts = refuse


def a_fault_in_the_first(rank):
    if rank == 0:
        from fairseq import checkpoint_utils

        def fail(*args, **kwargs):
            raise ValueError("Nobody foresaw this.\nAnd more.")

        checkpoint_utils.torch_persistent_save = fail


def a_folder_of_its_own_in_the_second(rank):
    if rank == 1:
        write = expert_files.write_experts
        expert_files.write_experts = lambda folder, content: write(f"{folder}/elsewhere", content)


def go_on(rank, data, folder, fail):
    """The sentence that ends a run which cannot save any more."""
    register()
    fail(rank)
    try:
        train_two(rank, data, folder, 6)
    except (UserError, ValueError) as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("fail", "words"),
    [
        (a_full_disk_in_the_second, "No space left on device"),
        (a_fault_in_the_first, "Nobody foresaw this."),
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
