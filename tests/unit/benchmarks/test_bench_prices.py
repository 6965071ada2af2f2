"""The benchmark of prices: means with any memory, what a log holds, ways of evaluation, and what the report says."""

import json
import sys

import pytest
import torch

from fairseq_mtmoe.moe import BaseGate, RunningPrices
from tests.helpers.tables import unpadded

MODULES = ("price_memory", "price_numbers", "price_picture", "price_report", "price_runs", "price_evaluation")
SCRIPTS = (*MODULES, "train_keeping_prices", "training_systems", "measure")


@pytest.fixture(autouse=True)
def _modules_are_forgotten():
    yield
    for name in SCRIPTS:
        sys.modules.pop(name, None)


def gates_that_learned(updates=30, num_experts=4, memory=0.9):
    """A gate, what its updates' prices were (S, N), and its sum of prices before each of them."""
    from dataclasses import replace

    torch.manual_seed(3)
    gate = BaseGate(num_experts, 8)
    gate.routing = replace(gate.routing, memory=memory)
    gate.prices = RunningPrices(num_experts, memory)
    prices, before = torch.randn(updates, num_experts), []
    prices -= prices.mean(1, keepdim=True)
    for price_N in prices:
        before.append(gate.prices.total.clone())
        gate.prices.record(price_N, torch.tensor(7.0))
        gate.prices.move(gate.prices.take())
    return gate, prices, before


# ---- memories ----


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.95, 0.995])
def test_a_mean_with_a_memory_is_what_a_loop_and_the_gates_find(memory):
    from price_memory import memory_mean

    gate, prices, _ = gates_that_learned(memory=memory)
    total, weight = torch.zeros(4, dtype=torch.float64), 0.0
    for price_N in prices.double():
        total, weight = memory * total + price_N, memory * weight + 1
    found = memory_mean(prices, memory)
    torch.testing.assert_close(found, total / weight)
    torch.testing.assert_close(found.float(), gate.prices.mean, rtol=1e-4, atol=1e-5)


def test_all_means_are_there_and_the_plain_one_is_of_the_last_updates():
    from price_memory import MEMORIES, PLAIN, means

    prices_SLN = torch.randn(PLAIN + 20, 2, 3)
    found = means(prices_SLN)
    assert len(found) == len(MEMORIES) + 1
    torch.testing.assert_close(found["0"], prices_SLN[-1].double())
    torch.testing.assert_close(found[f"last {PLAIN}"], sum(prices_SLN[20:].double()) / PLAIN)


def test_prices_of_every_update_are_found_from_the_sums():
    from train_keeping_prices import batch_prices

    gate, prices, before = gates_that_learned()
    torch.testing.assert_close(batch_prices(gate, before[-1]), prices[-1], rtol=1e-4, atol=1e-4)
    gate.prices.total.copy_(0.1 * prices[0])  # after the first update
    torch.testing.assert_close(batch_prices(gate, None), prices[0], rtol=1e-4, atol=1e-4)


def test_of_updates_that_were_made_twice_the_last_line_counts(tmp_path):
    from price_memory import prices_until, read_log, training_loads

    def line(update, price, most):
        return json.dumps({"update": update, "prices": [[price, -price]], "loads": [[0.5, most]]})

    path = tmp_path / "log"
    path.write_text("\n".join([line(1, 1.0, 2.0), line(2, 2.0, 2.0), line(3, 9.0, 9.0), line(3, 3.0, 5.0)]) + "\n")
    log = read_log(path)
    assert prices_until(log, 3)[:, 0, 0].tolist() == [1, 2, 3]
    assert prices_until(log, 2).shape == (2, 1, 2)
    assert training_loads(log) == {"mean": [3.0], "highest": [5.0]}


def test_a_log_of_updates_has_prices_and_loads_of_every_layer(tmp_path):
    from price_memory import read_log
    from torch import nn
    from train_keeping_prices import UpdateLog

    model = nn.ModuleList([BaseGate(2, 4), BaseGate(2, 4)])
    log = UpdateLog(tmp_path / "log")
    hidden_TH = torch.randn(10, 4)
    with log.counting():
        for update in (1, 2):
            before = log.totals(model)
            for gate in model:
                gate(hidden_TH)
                gate.prices.move(gate.prices.take())
            log.write(update, model, before)
            model.eval()
            model[0](hidden_TH[:1])  # no batch of training
            model.train()
    found = read_log(tmp_path / "log")
    assert [line["loads"] for line in found.values()] == [[[1, 1], [1, 1]]] * 2
    mean = torch.tensor([line["prices"][1] for line in found.values()])
    assert mean.shape == (2, 2)
    expected = (mean[0] * model[1].prices.memory + mean[1]) / (1 + model[1].prices.memory)
    torch.testing.assert_close(model[1].prices.mean, expected, rtol=1e-4, atol=1e-5)


# ---- ways of evaluation ----


def test_gates_route_in_each_way_and_as_before_afterwards():
    from price_evaluation import counting_changes, routed
    from price_runs import GREEDY, PRICES, WITHIN

    gate, _, _ = gates_that_learned()
    gate.eval()
    hidden_TH = torch.randn(40, 8)
    scores_TN = hidden_TH @ gate.weight.detach().t()
    best_T, routing = scores_TN.argmax(1), gate.routing
    found = {}
    for way in (GREEDY, PRICES, WITHIN):
        with routed([gate], way), counting_changes([gate]) as changed, torch.no_grad():
            gate.eval()  # as fairseq does before every batch
            found[way] = gate(hidden_TH).expert_T
        assert changed == [int((found[way] != best_T).sum())]
        assert gate.routing is routing and not gate.training
    assert found[GREEDY].equal(best_T)
    assert found[PRICES].equal((scores_TN - gate.prices.mean).argmax(1)) and not found[PRICES].equal(best_T)
    assert torch.bincount(found[WITHIN], minlength=4).tolist() == [10] * 4
    padding_T = torch.arange(40) < 30
    with routed([gate], PRICES), counting_changes([gate]) as changed, torch.no_grad():
        gate(hidden_TH, None, padding_T)
    assert changed == [int((found[PRICES] != best_T)[30:].sum())]


def test_checkpoints_are_found_by_update_and_three_of_them_chosen(tmp_path):
    from price_evaluation import checkpoints, first_middle_last

    for name in ("checkpoint_1_100.pt", "checkpoint_12_1000.pt", "checkpoint_3_200.pt", "checkpoint_last.pt"):
        (tmp_path / name).touch()
    assert list(checkpoints(tmp_path)) == [100, 200, 1000]
    assert first_middle_last([100, 200, 300, 400, 500]) == [100, 300, 500]
    assert first_middle_last([100]) == [100]
    assert first_middle_last([]) == []


# ---- runs ----


def test_the_demos_options_are_its_scripts(tmp_path):
    from price_runs import BALANCED, BY_NAME, DEMO, PriceRun

    command = PriceRun(BY_NAME["demo"], BALANCED, 3).train_command(tmp_path / "data", tmp_path / "run")
    script = DEMO.read_text(encoding="utf-8")
    for name, value in (
        ("--lr", "0.003"),
        ("--num-experts", "16"),
        ("--criterion", "moe_label_smoothed_cross_entropy"),
    ):
        assert f"{name} {value}" in script
        assert command[command.index(name) + 1] == value
    assert command[command.index("--seed") + 1] == "3" and command.count("--seed") == 1
    assert command[command.index("--lang-pairs") + 1] == str(tmp_path / "data" / "lang_pairs.txt")
    assert not any("$" in word for word in command)


def test_what_matters_most_comes_first():
    from price_runs import BALANCED, DENSE, PRICED, runs_in_order

    names = [run.name for run in runs_in_order(["captions", "demo"], (BALANCED, PRICED, DENSE), [1, 2])]
    assert names[:5] == ["captions-balanced-1", "captions-balanced-2", "demo-balanced-1", "demo-balanced-2",
                         "captions-prices-1"]  # fmt: skip
    assert not any(name.startswith("demo") for name in names[4:])


# ---- the report ----


def sums(perplexity, tokens=1000, num_experts=2):
    """What an evaluation finds: two pairs, the second with 3 times the tokens and a quarter of the perplexity."""
    from math import log

    return {
        "nll": {"en-de": log(perplexity) * tokens, "en-cs": log(perplexity / 4) * 3 * tokens},
        "tokens": {"en-de": tokens, "en-cs": 3 * tokens},
        "loads": [[300, 100], [150, 250]],
        "changed": [100, 200],
    }


def run_numbers(seed, greedy, prices, within, kind="balanced", data_set="captions"):
    from price_memory import NAMES
    from price_numbers import numbers_of
    from price_runs import BY_NAME, GREEDY, PRICES, WITHIN, PriceRun

    ways = {GREEDY: sums(greedy), PRICES: sums(prices), WITHIN: sums(within)}
    early = {way: sums(50.0) for way in (GREEDY, PRICES)}

    def memories(perplexity, best):
        return {name: sums(perplexity * (0.98 if name == best else 1)) for name in NAMES}

    evaluation = {
        "tiers": {"en-de": "high", "en-cs": "low"},
        "updates": {
            "100": {"ways": early, "memories": memories(50.0, "0.9")},
            str(400 + seed): {"ways": early, "memories": memories(50.0, "0.9")},
            "800": {"ways": ways, "memories": memories(prices, "last 80")},
        },
    }
    averages = {group: {"bleu": 10.0 + seed, "chrf": 20.0} for group in ("high", "low", "all")}
    better = {group: {"bleu": 10.5 + 2 * seed, "chrf": 19.0} for group in averages}
    content = {
        "evaluation": evaluation, "commit": "abc", "hardware": "a machine", "versions": {"torch": "2"},
        "command": ["python", "train"], "training_loads": {"mean": [1.5, 2.0], "highest": [3.0, 4.0 + seed]},
        "scores": {GREEDY: averages, PRICES: better}, "signatures": ["BLEU|v"],
    }  # fmt: skip
    return numbers_of(PriceRun(BY_NAME[data_set], kind, seed), content)


def test_perplexities_are_over_tokens_and_loads_over_even_shares():
    from price_numbers import of_way

    found = of_way(sums(16.0), {"en-de": "high", "en-cs": "low"})
    assert found["perplexity"] == {"low": 4.0, "high": 16.0, "all": round(4 * 4**0.25, 4)}
    assert (found["least"], found["most"], found["changed"]) == ([0.5, 0.75], [1.5, 1.25], [0.25, 0.5])


def test_differences_are_taken_seed_by_seed():
    from price_numbers import Spread, change, difference, signs

    # The means are equal, the seeds are not.
    assert change([11.0, 18.0], [10.0, 20.0]).shown(1, "+", "%") == "+0.0% (-10.0% to +10.0%)"
    assert difference([11.0, 18.0], [10.0, 20.0]).shown(1, "+") == "-0.5 (-2.0 to +1.0)"
    assert signs([11.0, 18.0], [10.0, 20.0]) == "1 of 2"
    assert Spread([2.5]).shown(1) == "2.5"


def test_the_report_says_what_the_numbers_come_to():
    from price_report import markdown

    numbers = [run_numbers(1, 20.0, 19.0, 22.0), run_numbers(2, 30.0, 30.6, 27.0),
               run_numbers(2, 30.0, 29.07, 27.0, kind="prices")]  # fmt: skip
    text = unpadded(markdown(numbers, "python bench", "picture.png"))
    assert "differs from greedy's by -1.50% (-5.00% to +2.00%), and is lower in 1 of 2 seeds" in text
    assert "balanced within the batch it differs by +0.00% (-10.00% to +10.00%), lower in 1 of 2." in text
    assert "At prices less greedily: BLEU +2.00 (+1.50 to +2.50), chrF++ -1.00 (-1.00 to -1.00), seeds 1, 2." in text
    assert "at the end perplexity at prices differs by -5.00%, lower in 1 of 1 seeds." in text
    assert "| captions, BLEU, prices less greedy | +2.00 (+1.50 to +2.50)" in text
    assert "100: +0.0% (+0.0% to +0.0%); 800: -1.5% (-5.0% to +2.0%). The mean is below 0 at 1 of 2" in text
    assert "| 0.9 | -2.00 | -2.00 | -1.50 | -1.50 | -1.83 |" in text
    assert "| last 80 | +0.00 | +0.00 | -3.47 | -3.47 | -1.16 |" in text
    assert "column: 0.9, 0.9, last 80. Over the last checkpoints: last 80; over all: 0.9." in text
    assert "| captions, prices against balanced | -5.00% | – | -5.00% | -5.00% | +0.00% |" in text
    assert "| captions, highest of the run | 3.00; 6.00 |" in text


def test_the_picture_has_a_line_for_each_seed_and_their_mean():
    from price_numbers import Runs
    from price_picture import over_updates

    runs = Runs([run_numbers(1, 20.0, 19.0, 22.0), run_numbers(2, 30.0, 30.6, 27.0)])
    (axes,) = over_updates([("captions", runs)]).axes
    zero, first, second, mean = axes.lines
    assert list(zero.get_ydata()) == [0, 0]
    assert list(first.get_ydata()) == pytest.approx([0, -5], abs=0.01)
    assert list(second.get_ydata()) == pytest.approx([0, 2], abs=0.01)
    assert list(mean.get_ydata()) == pytest.approx([0, -1.5], abs=0.01)
