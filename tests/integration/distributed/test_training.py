"""Training in several processes is training in one: losses, norms, validations, parameters, and checkpoints."""

import numpy as np
import pytest
import torch

from fairseq_mtmoe.checkpoints import assemble
from fairseq_mtmoe.report import run_log
from tests.helpers.benchmark import TASKS, make_benchmark, make_encoder, make_words_and_entities, task_arguments
from tests.helpers.commands import training_arguments
from tests.helpers.processes import joined, run_processes
from tests.helpers.scheduled import rarely
from tests.helpers.training import run_here, train_here

UPDATES = 6
# Translation with BASE's gates and Switch's, and a benchmark with MT-TaG's, with all kinds of answers in it; two
# processes are in test_combinations.py.
RUNS = ("translation", "benchmark")
# Adam makes steps of full size of gradients that are nothing but rounding, such as those of the keys' biases, and hides
# the size of all others; with this epsilon it does neither.
ADAM = ("--adam-eps", 1e-3)
# Only in this way are groups of tokens that are assigned together the same for any number of processes.
COMMON = (*ADAM, "--no-token-shuffle", "--num-experts", 4, "--max-update", UPDATES,
          "--log-interval", 1, "--validate-interval-updates", 3, "--no-save", "--clip-norm", 0.5)  # fmt: skip
OPTIONS = (*COMMON, "--max-tokens", 250)


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory):
    """Of seven tasks, each with 25 examples to validate with."""
    folder = tmp_path_factory.mktemp("benchmark")
    for make in (make_benchmark, make_words_and_entities):
        make(folder, {"train": 60, "dev": 25})
    make_encoder(folder / "encoder.pt")
    return folder


def of_tasks(data, folder, *options):
    """Arguments of a run on all of them. Of their 14 batches in a validation two processes of four have three."""
    tasks = ("--glue-tasks", f"{TASKS},rte,record,wnut17", "--init-encoder", data / "encoder.pt")
    return task_arguments(data, folder, *tasks, "--batch-size", 8, "--batch-size-valid", 16, *options)


def train_with(rank, arguments, *options):
    return run_here((*arguments, *options))


@pytest.mark.parametrize("run", rarely(RUNS, "benchmark"))
def test_updates_are_those_of_one_process(run, request, tmp_path):
    data = request.getfixturevalue("corpus" if run == "translation" else "benchmark")

    def arguments(folder):
        if run == "benchmark":
            return of_tasks(data, folder, *COMMON)
        return training_arguments(data, folder, *OPTIONS, "--expert-gates", "base,switch")

    alone, together = tmp_path / "alone", tmp_path / "together"
    (one,) = run_processes(train_with, 1, arguments(alone), "--update-freq", 4, "--ddp-backend", "legacy_ddp")
    several = run_processes(train_with, 4, arguments(together))
    assert len(one["norms"]) == UPDATES and min(one["norms"]) > 0.5  # all of them are clipped
    assert len(figures(alone)) == 2
    torch.testing.assert_close(figures(together), figures(alone), rtol=1e-5, atol=1e-12)
    assert routed_tokens(together) == routed_tokens(alone)
    for result in several:
        assert_logged_is_close(result, one)
    assert_parameters_are_close(several, one)
    assert len(one["prices"]) == (4 if run == "translation" else 0)
    for result in several:  # as the assignments: scores of nearly equal parameters
        torch.testing.assert_close(result["prices"], one["prices"], rtol=1e-7, atol=1e-4)


def assert_logged_is_close(result, right):
    for name in ("losses", "norms", "validations"):
        np.testing.assert_allclose(result[name], right[name], rtol=1e-5, err_msg=name)


def figures(folder):
    """What the run log says of every validation: each task and each group."""
    said = ("pairs", "tiers", "tasks", "groups", "all")
    valid = [event for event in run_log.read(folder) if event["event"] == "valid"]
    return [{name: event[name] for name in said if name in event} for event in valid]


def routed_tokens(folder):
    layers = [event["layers"] for event in run_log.read(folder) if event["event"] == "experts"]
    return [{path: np.sum(counts) for path, counts in of_layers.items()} for of_layers in layers]


BACKENDS = ("--ddp-backend", "pytorch_ddp"), ("--ddp-backend", "legacy_ddp"), ("--find-unused-parameters",)


def train_by_features(rank, data, folder, *runs):
    """Train with the criterion that needs no logits, if no wrapper looks for unused parameters."""
    options = (*OPTIONS, "--criterion", "moe_label_smoothed_cross_entropy", "--max-update", 3)
    return [train_here(data, folder, *options, *more) for more in runs]


def test_the_loss_from_features_is_that_of_one_process(corpus, tmp_path):
    ((one,),) = run_processes(train_by_features, 1, corpus, tmp_path, ("--update-freq", 2))
    for results in run_processes(train_by_features, 2, corpus, tmp_path, *BACKENDS):
        for result in results:
            assert_logged_is_close(result, one)


# ---- checkpoints ----

SAVING = (*ADAM, "--save-interval-updates", 3, "--log-interval", 1, "--keep-interval-updates", 1,
          "--store-ema", "--ema-decay", 0.9)  # fmt: skip
SPARSE = ("--no-token-shuffle", "--num-experts", 4)
STOCK = ("--arch", "transformer_tiny", "--task", "translation_multi_simple_epoch", "--lang-pairs", "en-aa,en-bb,en-cc",
         "--encoder-langtok", "tgt", "--decoder-langtok")  # fmt: skip
# Numbers of processes until updates 3, 6 and the last, which is this one, and options.
RESUMED = {
    "translation": ((2, 4, 1), 12, (*SPARSE, "--expert-gates", "base,task", "--optimizer", "fused_adam")),
    "benchmark": ((4, 1, 2), 12, SPARSE),
    "dense": ((2, 4, 1), 9, ("--arch", "base_dense_tiny", "--zero-sharding", "os")),
    "stock": ((1, 2, 2), 9, STOCK),
}


def train_until(rank, arguments, world_size, updates):
    return run_here((*arguments, "--max-update", updates, "--update-freq", 4 // world_size))


@pytest.mark.parametrize("kind", rarely(RESUMED, "benchmark", "dense", "stock"))
def test_a_run_goes_on_in_another_number_of_processes(kind, request, tmp_path):
    """In the middle of an epoch, and across its end; the optimizer, spread in four, and the moving average travel.

    A dense checkpoint fairseq would send from process to process, in a form that is not loaded safely.
    """
    data = request.getfixturevalue("benchmark" if kind == "benchmark" else "corpus")
    chain, end, options = RESUMED[kind]

    def arguments(folder):
        make, *more = (of_tasks,) if kind == "benchmark" else (training_arguments, "--max-tokens", 250)
        return make(data, folder, *SAVING, *options, *more)

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    (right,) = run_processes(train_until, 1, arguments(whole), 1, end)
    for begin, updates, world_size in zip((0, 3, 6), (3, 6, end), chain, strict=True):
        results = run_processes(train_until, world_size, arguments(parts), world_size, updates)
        assert all(len(result["losses"]) == updates - begin for result in results)
    assert_parameters_are_close(results, right)
    files = (whole / "checkpoint_last.pt", parts / "checkpoint_last.pt")
    expected, saved = (assemble.whole(path, assemble.load_shared_part(path)) for path in files)
    for kept in (lambda whole: whole["last_optimizer_state"]["state"], lambda whole: whole["extra_state"]["ema"]):
        torch.testing.assert_close(kept(saved), kept(expected), rtol=1e-5, atol=1e-5)
    prices = {key: value for key, value in expected["model"].items() if ".prices." in key}
    assert len(prices) == (4 if kind == "translation" else 0)
    assert all(value.any() for value in prices.values())
    torch.testing.assert_close({key: saved["model"][key] for key in prices}, prices, rtol=1e-5, atol=1e-5)
    saved_as = {path.stem for path in parts.glob("*.pt")}
    assert {"checkpoint_best", "checkpoint_last"} < saved_as
    assert {path.stem for path in parts.glob("*.experts")} == (saved_as if kind == "benchmark" else set())


def assert_parameters_are_close(results, right):
    found = joined([result["parameters"] for result in results])
    torch.testing.assert_close(found, right["parameters"], atol=1e-5, rtol=1e-5)
