"""Training in several processes is training in one: losses, norms, validations, parameters, and checkpoints."""

import numpy as np
import pytest
import torch

from fairseq_mtmoe.checkpoints import assemble
from tests.helpers.digits import make_digit_corpus
from tests.helpers.processes import run_processes
from tests.helpers.training import train_here

UPDATES = 10
PROCESSES = (1, 2, 4)
GATES = ("base", "task", "switch")
# Adam makes steps of full size of gradients that are nothing but rounding, such as those of the keys' biases, and hides
# the size of all others; with this epsilon it does neither.
ADAM = ("--adam-eps", 1e-3)
# Only in this way are groups of tokens that are assigned together the same for any number of processes.
OPTIONS = (*ADAM, "--no-token-shuffle", "--num-experts", 4, "--max-update", UPDATES, "--max-tokens", 250,
           "--log-interval", 1, "--validate-interval-updates", 5, "--no-save", "--clip-norm", 0.5)  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_digit_corpus(tmp_path_factory.mktemp("digits"), train=600)


def train_with(rank, data, folder, gate, backend, world_size):
    freq = max(PROCESSES) // world_size
    options = ("--expert-gates", gate, "--update-freq", freq, "--ddp-backend", backend)
    return train_here(data, folder, *OPTIONS, *options)


@pytest.fixture(scope="module", params=GATES)
def alone(request, corpus, tmp_path_factory):
    """The gate, and what one process computes with it."""
    arguments = (corpus, tmp_path_factory.mktemp("alone"), request.param, "legacy_ddp", 1)
    return request.param, run_processes(train_with, 1, *arguments)[0]


@pytest.mark.parametrize(("world_size", "backend"), [(2, "legacy_ddp"), (4, "pytorch_ddp")])
def test_ten_updates_are_those_of_one_process(world_size, backend, alone, corpus, tmp_path):
    gate, one = alone
    several = run_processes(train_with, world_size, corpus, tmp_path, gate, backend, world_size)
    assert len(one["norms"]) == UPDATES and min(one["norms"]) > 0.5  # all of them are clipped
    for result in several:
        for name in ("losses", "norms", "validations"):
            np.testing.assert_allclose(result[name], one[name], rtol=1e-5, err_msg=name)
    for name, right in one["parameters"].items():
        found = [result["parameters"][name] for result in several]
        whole = np.concatenate(found) if ".moe.experts." in name else found[0]
        np.testing.assert_allclose(whole, right, atol=1e-5, rtol=1e-5, err_msg=name)
    assert len(one["prices"]) == (8 if gate == "base" else 0)
    for name, right in one["prices"].items():
        for result in several:  # as the assignments: scores of nearly equal parameters
            np.testing.assert_allclose(result["prices"][name], right, atol=1e-4, err_msg=name)


def train_by_features(rank, data, folder, *options):
    """With the criterion that needs no logits, how often it went that way, too."""
    from fairseq_mtmoe.criterions import moe_label_smoothed_cross_entropy as criterion

    ways = []
    original = criterion.output_weight
    criterion.output_weight = lambda model: ways.append(original(model)) or ways[-1]
    result = train_here(data, folder, *OPTIONS, "--criterion", "moe_label_smoothed_cross_entropy", *options)
    return result, sum(weight is not None for weight in ways) / len(ways)


@pytest.mark.parametrize("backend", ["pytorch_ddp", "legacy_ddp"])
def test_the_loss_from_features_is_that_of_one_process(backend, corpus, tmp_path):
    ((one, share),) = run_processes(train_by_features, 1, corpus, tmp_path, "--update-freq", 2)
    several = run_processes(train_by_features, 2, corpus, tmp_path, "--ddp-backend", backend)
    assert share == 1 and all(share == 1 for _, share in several)
    for result, _ in several:
        for name in ("losses", "norms", "validations"):
            np.testing.assert_allclose(result[name], one[name], rtol=1e-5, err_msg=name)


def test_a_wrapper_that_looks_for_unused_parameters_sees_them_used(corpus, tmp_path):
    options = ("--max-update", 2, "--find-unused-parameters", "--ddp-backend", "pytorch_ddp")
    several = run_processes(train_by_features, 2, corpus, tmp_path, *options)
    assert all(share < 1 and len(result["norms"]) == 2 for result, share in several)


# ---- checkpoints ----

SAVING = (*ADAM, "--max-tokens", 250, "--save-interval-updates", 3, "--log-interval", 1, "--keep-interval-updates", 1,
          "--store-ema", "--ema-decay", 0.9)  # fmt: skip
SPARSE = ("--no-token-shuffle", "--num-experts", 4, "--expert-gates", "base,task")
DENSE = {  # of ours and of fairseq
    "ours": ("--arch", "base_dense_tiny", "--zero-sharding", "os"),
    "stock": ("--arch", "transformer_tiny", "--task", "translation_multi_simple_epoch", "--lang-pairs",
              "en-aa,en-bb,en-cc", "--encoder-langtok", "tgt", "--decoder-langtok"),
}  # fmt: skip


def train_until(rank, data, folder, world_size, updates, *options):
    freq = 4 // world_size
    return train_here(data, folder, *SAVING, "--max-update", updates, "--update-freq", freq, *options)


@pytest.fixture(scope="module")
def uninterrupted(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    (result,) = run_processes(train_until, 1, corpus, folder, 1, 12, *SPARSE)
    return result, folder


@pytest.mark.parametrize("chain", [(2, 4, 1), (4, 1, 2)], ids=str)
def test_a_run_goes_on_in_another_number_of_processes(chain, corpus, uninterrupted, tmp_path):
    """In the middle of an epoch, and across its end; optimizer and moving average travel."""
    for world_size, updates in zip(chain, (3, 6, 12), strict=True):
        results = run_processes(train_until, world_size, corpus, tmp_path, world_size, updates, *SPARSE)
        assert len(results[0]["losses"]) == {3: 3, 6: 3, 12: 6}[updates]
    right, folder = uninterrupted
    for name, value in right["parameters"].items():
        found = [result["parameters"][name] for result in results]
        whole = np.concatenate(found) if ".moe.experts." in name else found[0]
        np.testing.assert_allclose(whole, value, atol=1e-5, rtol=1e-5, err_msg=name)
    expected, saved = (whole_checkpoint(path) for path in (folder, tmp_path))
    assert_close(saved["last_optimizer_state"]["state"], expected["last_optimizer_state"]["state"])
    assert_close(saved["extra_state"]["ema"], expected["extra_state"]["ema"])
    prices = {key: value for key, value in expected["model"].items() if ".prices." in key}
    assert len(prices) == 4 and all(value.any() for value in prices.values())
    assert_close({key: saved["model"][key] for key in prices}, prices)
    saved_as = {path.stem for path in tmp_path.glob("*.pt")}
    assert {"checkpoint_best", "checkpoint_last"} < saved_as
    assert {path.stem for path in tmp_path.glob("*.experts")} == (saved_as if chain[-1] > 1 else set())


@pytest.mark.parametrize(("kind", "chain"), [("ours", (2, 4, 1)), ("stock", (1, 2, 2))])
def test_a_dense_run_goes_on_too(kind, chain, corpus, tmp_path):
    """fairseq would send the checkpoint from process to process, in a form that is not loaded safely."""
    (right,) = run_processes(train_until, 1, corpus, tmp_path / "uninterrupted", 1, 9, *DENSE[kind])
    for world_size, updates in zip(chain, (3, 6, 9), strict=True):
        results = run_processes(train_until, world_size, corpus, tmp_path, world_size, updates, *DENSE[kind])
        assert all(len(result["losses"]) == 3 for result in results)
    for result in results:
        for name, value in right["parameters"].items():
            np.testing.assert_allclose(result["parameters"][name], value, atol=1e-5, rtol=1e-5, err_msg=name)


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
