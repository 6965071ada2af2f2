"""Training in several processes is training in one: losses, norms, validations, parameters, and checkpoints."""

import json

import numpy as np
import pytest
import torch

from fairseq_mtmoe.checkpoints import assemble
from tests.helpers.benchmark import TASKS, make_benchmark, make_encoder, make_words_and_entities, task_arguments
from tests.helpers.commands import training_arguments
from tests.helpers.digits import make_digit_corpus
from tests.helpers.processes import run_processes
from tests.helpers.training import run_here, train_here

UPDATES = 6
# Translation with each gate, and a benchmark with MT-TaG's, with all kinds of answers in it: how each is trained.
RUNS = [
    ("base", 4, "pytorch_ddp"), ("task", 2, "legacy_ddp"), ("benchmark", 4, "pytorch_ddp"),
    pytest.param("switch", 4, "pytorch_ddp", marks=pytest.mark.rare),
]  # fmt: skip
# Adam makes steps of full size of gradients that are nothing but rounding, such as those of the keys' biases, and hides
# the size of all others; with this epsilon it does neither.
ADAM = ("--adam-eps", 1e-3)
# Only in this way are groups of tokens that are assigned together the same for any number of processes.
COMMON = (*ADAM, "--no-token-shuffle", "--num-experts", 4, "--max-update", UPDATES,
          "--log-interval", 1, "--validate-interval-updates", 3, "--no-save", "--clip-norm", 0.5)  # fmt: skip
OPTIONS = (*COMMON, "--max-tokens", 250)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_digit_corpus(tmp_path_factory.mktemp("digits"), train=600)


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


def train_with(rank, arguments, backend, world_size):
    return run_here((*arguments, "--update-freq", 4 // world_size, "--ddp-backend", backend))


@pytest.fixture(scope="module")
def arguments_of(request):
    """A run: its name, and the arguments for a folder."""
    if request.param == "benchmark":
        data = request.getfixturevalue("benchmark")
        return request.param, lambda folder: of_tasks(data, folder, *COMMON)
    data = request.getfixturevalue("corpus")
    return request.param, lambda folder: training_arguments(data, folder, *OPTIONS, "--expert-gates", request.param)


@pytest.fixture(scope="module")
def alone(arguments_of, tmp_path_factory):
    """What one process computes, and the folder of its run."""
    folder = tmp_path_factory.mktemp("alone")
    return run_processes(train_with, 1, arguments_of[1](folder), "legacy_ddp", 1)[0], folder


@pytest.mark.parametrize(("arguments_of", "world_size", "backend"), RUNS, indirect=["arguments_of"])
def test_updates_are_those_of_one_process(world_size, backend, arguments_of, alone, tmp_path):
    run, arguments = arguments_of
    one, folder = alone
    several = run_processes(train_with, world_size, arguments(tmp_path), backend, world_size)
    assert len(one["norms"]) == UPDATES and min(one["norms"]) > 0.5  # all of them are clipped
    assert_figures_are_close(figures(tmp_path), figures(folder))
    for result in several:
        assert_logged_is_close(result, one)
    assert_parameters_are_close(several, one)
    assert len(one["prices"]) == (8 if run == "base" else 0)
    for name, right in one["prices"].items():
        for result in several:  # as the assignments: scores of nearly equal parameters
            np.testing.assert_allclose(result["prices"][name], right, atol=1e-4, err_msg=name)


def assert_logged_is_close(result, right):
    for name in ("losses", "norms", "validations"):
        np.testing.assert_allclose(result[name], right[name], rtol=1e-5, err_msg=name)


def figures(folder):
    """What the run log says of every validation: each task and each group."""
    events = [json.loads(line) for line in (folder / "mtmoe.jsonl").read_text().splitlines()]
    said = ("pairs", "tiers", "tasks", "groups", "all")
    return [{name: event[name] for name in said if name in event} for event in events if event["event"] == "valid"]


def assert_figures_are_close(found, right):
    if isinstance(right, dict | list):
        places = right if isinstance(right, dict) else range(len(right))
        assert len(found) == len(right) > 0
        for place in places:
            assert_figures_are_close(found[place], right[place])
    else:
        assert found == pytest.approx(right, rel=1e-5)


def train_by_features(rank, data, folder, *options):
    """With the criterion that needs no logits, how often it went that way, too."""
    from fairseq_mtmoe.criterions import moe_label_smoothed_cross_entropy as criterion

    ways = []
    original = criterion.output_weight
    criterion.output_weight = lambda model: ways.append(original(model)) or ways[-1]
    options = ("--criterion", "moe_label_smoothed_cross_entropy", "--max-update", 3, *options)
    result = train_here(data, folder, *OPTIONS, *options)
    return result, sum(weight is not None for weight in ways) / len(ways)


def test_the_loss_from_features_is_that_of_one_process(corpus, tmp_path):
    """But a wrapper that looks for unused parameters must see them used."""
    ((one, share),) = run_processes(train_by_features, 1, corpus, tmp_path, "--update-freq", 2)
    assert share == 1
    for backend in ("pytorch_ddp", "legacy_ddp"):
        for result, share in run_processes(train_by_features, 2, corpus, tmp_path, "--ddp-backend", backend):
            assert share == 1
            assert_logged_is_close(result, one)
    options = ("--max-update", 2, "--find-unused-parameters", "--ddp-backend", "pytorch_ddp")
    several = run_processes(train_by_features, 2, corpus, tmp_path, *options)
    assert all(share < 1 and len(result["norms"]) == 2 for result, share in several)


# ---- checkpoints ----

SAVING = (*ADAM, "--save-interval-updates", 3, "--log-interval", 1, "--keep-interval-updates", 1,
          "--store-ema", "--ema-decay", 0.9)  # fmt: skip
SPARSE = ("--no-token-shuffle", "--num-experts", 4)
BATCHES = ("--max-tokens", 250)
DENSE = {  # of ours and of fairseq
    "ours": ("--arch", "base_dense_tiny", "--zero-sharding", "os"),
    "stock": ("--arch", "transformer_tiny", "--task", "translation_multi_simple_epoch", "--lang-pairs",
              "en-aa,en-bb,en-cc", "--encoder-langtok", "tgt", "--decoder-langtok"),
}  # fmt: skip


def train_until(rank, arguments, world_size, updates):
    spread = ("--zero-sharding", "os") if world_size == 4 else ()
    return run_here((*arguments, "--max-update", updates, "--update-freq", 4 // world_size, *spread))


@pytest.fixture(scope="module", params=["translation", "benchmark"])
def uninterrupted(request, tmp_path_factory):
    """What an uninterrupted run ends with, its folder, its arguments for another one, and numbers of processes."""

    def arguments(folder):
        if request.param == "benchmark":
            return of_tasks(request.getfixturevalue("benchmark"), folder, *SAVING, *SPARSE)
        options = ("--expert-gates", "base,task", "--optimizer", "fused_adam", *BATCHES)
        return training_arguments(request.getfixturevalue("corpus"), folder, *SAVING, *SPARSE, *options)

    folder = tmp_path_factory.mktemp("uninterrupted")
    (result,) = run_processes(train_until, 1, arguments(folder), 1, 12)
    return result, folder, arguments, {"translation": (2, 4, 1), "benchmark": (4, 1, 2)}[request.param]


def test_a_run_goes_on_in_another_number_of_processes(uninterrupted, tmp_path):
    """In the middle of an epoch, and across its end; the optimizer, spread in four, and the moving average travel."""
    right, folder, arguments, chain = uninterrupted
    results = train_on(chain, arguments(tmp_path), 12)
    assert_parameters_are_close(results, right)
    expected, saved = (whole_checkpoint(path) for path in (folder, tmp_path))
    assert_close(saved["last_optimizer_state"]["state"], expected["last_optimizer_state"]["state"])
    assert_close(saved["extra_state"]["ema"], expected["extra_state"]["ema"])
    prices = {key: value for key, value in expected["model"].items() if ".prices." in key}
    assert len(prices) == (0 if "heads.rte.weight" in saved["model"] else 4)
    assert all(value.any() for value in prices.values())
    assert_close({key: saved["model"][key] for key in prices}, prices)
    saved_as = {path.stem for path in tmp_path.glob("*.pt")}
    assert {"checkpoint_best", "checkpoint_last"} < saved_as
    assert {path.stem for path in tmp_path.glob("*.experts")} == (saved_as if chain[-1] > 1 else set())


@pytest.mark.parametrize(("kind", "chain"), [("ours", (2, 4, 1)), ("stock", (1, 2, 2))])
def test_a_dense_run_goes_on_too(kind, chain, corpus, tmp_path):
    """fairseq would send the checkpoint from process to process, in a form that is not loaded safely."""

    def arguments(folder):
        return training_arguments(corpus, folder, *SAVING, *BATCHES, *DENSE[kind])

    (right,) = run_processes(train_until, 1, arguments(tmp_path / "uninterrupted"), 1, 9)
    assert_parameters_are_close(train_on(chain, arguments(tmp_path), 9), right)


def train_on(chain, arguments, end):
    """Train until updates 3, 6 and the end, each time in another number of processes; what the last of them did."""
    for begin, updates, world_size in zip((0, 3, 6), (3, 6, end), chain, strict=True):
        results = run_processes(train_until, world_size, arguments, world_size, updates)
        assert all(len(result["losses"]) == updates - begin for result in results)
    return results


def assert_parameters_are_close(results, right):
    for name, value in right["parameters"].items():
        found = [result["parameters"][name] for result in results]
        whole = np.concatenate(found) if ".moe.experts." in name else found[0]
        np.testing.assert_allclose(whole, value, atol=1e-5, rtol=1e-5, err_msg=name)


def whole_checkpoint(folder):
    path = folder / "checkpoint_last.pt"
    return assemble.whole(path, assemble.load_shared_part(path))


def assert_close(found, right):
    if isinstance(right, dict):
        assert list(found) == list(right)
        for key in right:
            assert_close(found[key], right[key])
    else:
        torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)
