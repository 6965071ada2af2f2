"""Our trainer in two processes: bad updates are left out by both, sparsification gives each its experts."""

import itertools
import logging
import os
import signal

import numpy as np
import pytest
import torch
from torch import distributed as dist

from fairseq_mtmoe.checkpoints import assemble
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.training.saving import lock
from tests.helpers.kill.runs import assert_same_run
from tests.helpers.processes import joined, run_processes
from tests.helpers.trainers import groups_of, spoil, state_of, trainer_here
from tests.helpers.training import interrupted, train_here

SMALL = ("--max-tokens", 100, "--num-experts", 4, "--expert-gates", "task", "--adam-eps", 1e-3)
WAY = "infinite gradients of a finite loss"


# ---- bad updates ----


def go_wrong(rank, data, folder):
    """Which updates are left out, two of which are bad in the second process, and sentences of bad weights."""
    logging.disable(logging.INFO)
    trainer = trainer_here(data, folder, *SMALL, "--update-freq", 2)
    outputs = []
    for number, samples in enumerate(groups_of(trainer, 5)):
        before = state_of(trainer)
        if number in (1, 2) and rank == 1:
            spoil(trainer, WAY, call=number - 1)
        outputs.append(trainer.train_step(samples) is None)
        after = state_of(trainer)
        assert outputs[-1] == (set(before) == set(after) and all(torch.equal(before[key], after[key]) for key in after))
    trainer.expect_finite_weights()
    if rank == 1:
        with torch.no_grad():
            next(trainer._layers[0].experts.parameters()).view(-1)[3] = float("nan")
    sentences = []
    for restored in (None, "a.pt"):
        with pytest.raises(UserError) as caught:
            trainer.expect_finite_weights(restored)
        sentences.append(str(caught.value))
    with pytest.raises(UserError) as in_use:
        train_here(data, folder, *SMALL)
    return (outputs, trainer.get_num_updates(), trainer._nonfinite.total), sentences, str(in_use.value)


def test_both_processes_leave_a_bad_batch_out_and_end_at_bad_weights_or_in_a_folder_that_is_used(corpus, tmp_path):
    with lock(str(tmp_path)):
        found, other = run_processes(go_wrong, 2, corpus, tmp_path)
    skipped, (first, restored), in_use = found
    assert found == other and skipped == ([False, True, True, False, False], 3, 2)
    assert first.startswith("The weights are not finite after update 3") and restored.startswith("`a.pt` has weights")
    assert f"is in use by process {os.getpid()} of" in in_use


# ---- signals ----

RUN = (*SMALL, "--dropout", 0.1, "--max-update", 7, "--save-interval-updates", 4)


def run_until(rank, data, folder, *moment):
    """Train; the second process alone may get a signal. Returns the exit code."""
    if not moment:
        return train_here(data, folder, *RUN) and 0
    method, call = moment
    with interrupted(signal.SIGTERM, method, call if rank == 1 else 0) as ended:
        train_here(data, folder, *RUN)
    return ended.value.code


def end_all(corpus, run, method, call, updates):
    """End the run in two processes by a signal to one, and check how far its checkpoint is."""
    assert run_processes(run_until, 2, corpus, run, method, call) == [143, 143]
    shared_part = assemble.load_shared_part(run / "checkpoint_last.pt")
    assert shared_part["optimizer_history"][-1]["num_updates"] == updates


def test_a_signal_to_one_process_ends_all_and_the_run_goes_on_as_if_there_were_none(corpus, tmp_path):
    run_processes(run_until, 2, corpus, tmp_path / "all")
    run = tmp_path / "run"
    end_all(corpus, run, "train_step", 2, updates=2)
    run_processes(run_until, 2, corpus, run)
    assert_same_run(run, tmp_path / "all", tolerance=1e-6)


def test_a_signal_in_a_validation_ends_all_processes_and_keeps_the_updates(corpus, tmp_path):
    end_all(corpus, tmp_path, "valid_step", 1, updates=4)


# ---- what two processes do as one ----


def end_of_epoch(data, folder):
    """An update of three batches, of which the second process has one; fairseq's trainer forgets its sentences."""
    world_size = dist.get_world_size()
    trainer = trainer_here(data, folder, *SMALL, "--update-freq", 3 if world_size == 1 else 2)
    batches = trainer.get_train_iterator(epoch=1, shard_batch_itr=False).next_epoch_itr()
    trainer.begin_epoch(1)
    first, second, third = itertools.islice(batches, 3)
    samples = [first, second, third] if world_size == 1 else [[first, third], [second, {}]][dist.get_rank()]
    norms = noted_norms(trainer)
    output = trainer.train_step(samples)
    return [norms[0], float(output["loss"]), float(output["sample_size"])], arrays_of(trainer.get_model())


def sparsification(data, folder, *more):
    options = ("--dense-updates", 2, "--update-freq", 2 // dist.get_world_size(), *more)
    trainer = trainer_here(data, folder, *SMALL, *options, "--store-ema", "--ema-decay", 0.5)
    norms = noted_norms(trainer)
    for samples in groups_of(trainer, 5):
        trainer.train_step(samples)
    return norms, arrays_of(trainer.get_model()) | arrays_of(trainer.ema.get_model(), "ema.")


WAYS = {
    "a batch before a dummy counts": end_of_epoch,
    "sparsification": sparsification,
    "sparsification, legacy DDP": lambda *given: sparsification(*given, "--ddp-backend", "legacy_ddp"),
}


def noted_norms(trainer):
    norms, clip = [], trainer.clip_grad_norm
    trainer.clip_grad_norm = lambda clip_norm: norms.append(float(norm := clip(clip_norm))) or norm
    return norms


def arrays_of(model, prefix=""):
    return {f"{prefix}{name}": value.numpy() for name, value in model.state_dict().items()}


def train_in_ways(rank, data, folder):
    logging.disable(logging.INFO)
    return [train(data, folder) for train in WAYS.values()]


def test_two_processes_do_what_one_does(corpus, tmp_path):
    """The experts of both, one after the other, are those of one."""
    alone, first, second = (run for size in (1, 2) for run in run_processes(train_in_ways, size, corpus, tmp_path))
    for way, (figures, state), *both in zip(WAYS, alone, first, second, strict=True):
        assert sum(".moe.experts." in name for name in state) >= 8
        for found, _ in both:
            assert found == pytest.approx(figures, rel=1e-5), way
        torch.testing.assert_close(joined([found for _, found in both]), state, rtol=1e-5, atol=1e-5)


# ---- norms ----

PRECISIONS = {
    "float32": {},
    "bfloat16": dict(common__bf16=True),
    "flat half precision": dict(common__fp16=True, common__fp16_init_scale=4),
}


def norms(rank, data, folder):
    """The first norm of the gradients in each precision."""
    logging.disable(logging.INFO)
    # fairseq asks CUDA for its device even on a CPU; "no index" is a CPU tensor's.
    torch.cuda.current_device = lambda: None
    found = []
    for changes in PRECISIONS.values():
        options = (*SMALL, "--num-experts", 2, "--update-freq", 4 // dist.get_world_size())
        trainer = trainer_here(data, folder, *options, **changes)
        of_trainer = noted_norms(trainer)
        trainer.train_step(groups_of(trainer, 1)[0])
        found += of_trainer
    return found


def test_norms_are_of_all_parameters_in_every_precision(corpus, tmp_path):
    """In four processes with two experts there are two replicas of each."""
    (alone,) = run_processes(norms, 1, corpus, tmp_path)
    for several in run_processes(norms, 4, corpus, tmp_path):
        np.testing.assert_allclose(several[0], alone[0], rtol=1e-5)
        np.testing.assert_allclose(several, alone, rtol=5e-3)
