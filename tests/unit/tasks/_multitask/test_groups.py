"""Sums of tasks in logging outputs, and the metrics that come from them."""

import math

import pytest
import torch
from fairseq.logging import metrics

from fairseq_mtmoe.tasks._multitask.groups import Group, add_task_sums, group_values, log_groups, plain_numbers
from tests.helpers.pretended_gpu import pretended_gpu

PAIRS = ["en-aa", "en-bb", "en-cc"]
ALONE = [Group(pair, (pair,)) for pair in PAIRS]


def output(pair, loss, nll_loss, tokens, sample_size=None):
    log = {"loss": torch.tensor(loss), "nll_loss": torch.tensor(nll_loss), "ntokens": tokens}
    log["sample_size"] = tokens if sample_size is None else sample_size
    add_task_sums(log, pair, PAIRS)
    return log


@pytest.fixture
def meters():
    with metrics.aggregate(new_root=True) as meters:
        yield meters


def test_every_output_has_the_same_keys_of_the_same_types():
    first, second = output("en-aa", 2.0, 1.0, 3), output("en-cc", 5.0, 4.0, 7)
    assert list(first) == list(second)
    assert {key: type(value) for key, value in first.items()} == {key: type(value) for key, value in second.items()}
    assert first["en-aa_loss"] == 2.0 and first["en-cc_loss"] == 0.0 and second["en-cc_ntokens"] == 7


def test_pairs_and_tiers_are_averages_over_tokens_in_base_2(meters):
    for log in (output("en-aa", 20.0, 10.0, 10), output("en-aa", 5.0, 2.0, 2), output("en-bb", 12.0, 9.0, 3)):
        log_groups([log], [*ALONE, Group("high", ("en-aa", "en-bb"))])
    assert meters["en-aa_loss"].avg == pytest.approx(25 / 12 / math.log(2))
    assert meters["en-aa_nll_loss"].avg == pytest.approx(1 / math.log(2))
    assert meters.get_smoothed_value("en-aa_ppl") == pytest.approx(math.e, abs=0.01)
    assert meters["high_nll_loss"].avg == pytest.approx(21 / 15 / math.log(2))
    assert meters.get_smoothed_value("high_ppl") == pytest.approx(math.exp(21 / 15), abs=0.01)
    assert "en-cc_loss" not in meters


def test_a_criterion_without_nll_loss_or_by_sentence(meters):
    log = {"loss": torch.tensor(6.0), "ntokens": 3, "sample_size": 3}
    add_task_sums(log, "en-aa", PAIRS)
    log_groups([log], ALONE)
    assert meters["en-aa_nll_loss"].avg == meters["en-aa_loss"].avg == pytest.approx(2 / math.log(2))


def test_a_gpus_sums_are_copied_once(meters):
    with pretended_gpu() as rules:
        logs = []
        for pair, tokens in (("en-aa", 3), ("en-cc", 7)):
            log = {name: torch.full((), 2.0 * tokens, device="cuda") for name in ("loss", "nll_loss")}
            logs.append({**log, "ntokens": tokens, "sample_size": tokens})
            add_task_sums(logs[-1], pair, PAIRS)
        assert not rules.waits
        log_groups([plain_numbers(log) for log in logs], [*ALONE, Group("all", tuple(PAIRS))])
        assert len(rules.waits) == len(logs)
    assert meters["all_nll_loss"].avg == meters["en-cc_loss"].avg == pytest.approx(2 / math.log(2))
    assert meters["all_loss"].count == 10


def test_values_for_the_run_log_are_not_rounded(meters):
    log_groups([output("en-aa", 10.0, 7.0, 9)], ALONE)
    values = group_values(meters, "en-aa_")
    assert values["ppl"] == pytest.approx(math.exp(7 / 9)) and values["tokens"] == 9
    assert values["loss"] == pytest.approx(10 / 9 / math.log(2))
    metrics.log_scalar("loss", 2000.0, 5)
    assert group_values(meters, "") == {"loss": 2000.0, "nll_loss": 2000.0, "ppl": math.inf, "tokens": 5}
