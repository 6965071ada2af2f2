"""The prices of BASE layers survive whatever happens to a checkpoint."""

import copy

import pytest
import torch
from fairseq.dataclass.configs import EMAConfig
from fairseq.models.ema.ema import EMA

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.assemble import load_shared_part
from fairseq_mtmoe.checkpoints.key_maps import prices_of, put_prices, without_prices
from fairseq_mtmoe.checkpoints.loading import load_ema
from fairseq_mtmoe.checkpoints.rewriting import average, save_with_experts
from fairseq_mtmoe.checkpoints.sharding import expert_folder
from fairseq_mtmoe.moe import remember_prices, running_prices
from tests.helpers.models import batch, moe_model
from tests.helpers.states import assert_same, read_whole, save_all, trained, write_in_parts

BASE = dict(expert_gates="base")


def priced(seed=1):
    """What a run saves, with the prices of three updates in its model and its average."""
    model, state = moe_model(seed, num_experts=4, **BASE).train(), unpriced(seed)[0]
    average = EMA(model, EMAConfig(store_ema=True, ema_decay=0.5))
    for _ in range(3):
        model(**batch())
        remember_prices(running_prices(model))
        average.step(model)
    return put_prices(state, prices_of(model.state_dict()), prices_of(average.get_model().state_dict()))


def unpriced(seed=1):
    """What versions before 0.1.2 saved, and its parameters."""
    state, parameters = trained(4, seed=seed, **BASE)
    return without(state), parameters


def without(state):
    state = {**state, "model": without_prices(state["model"]), "extra_state": dict(state["extra_state"])}
    for name in ("ema", "ema_fp32_params"):
        state["extra_state"][name] = without_prices(state["extra_state"][name])
    return state


def means(named):
    totals = {key: value for key, value in named.items() if key.endswith("prices.total")}
    return {key: value / named[key.replace("total", "weight")] for key, value in totals.items()}


def test_they_are_put_where_a_model_has_them_and_all_else_stays():
    state, prices = unpriced()[0], prices_of(priced()["model"])
    before = copy.deepcopy(state)
    found = put_prices(state, prices, prices)
    assert_same(state, before)
    assert len(prices) == 4 and list(found["model"]) == list(moe_model(num_experts=4, **BASE).state_dict())
    options = {**state["cfg"]["model"], "base_evaluation": "prices"}  # which can be overridden from now on
    assert_same(without(found), {**state, "cfg": {**state["cfg"], "model": options}})
    assert_same(prices_of(found["model"]), prices)
    assert found["extra_state"]["ema"].keys() == found["extra_state"]["ema_fp32_params"].keys() == found["model"].keys()
    assert "ema" not in put_prices({**state, "extra_state": {}}, prices, None)["extra_state"]


def test_a_shared_part_gets_them_too_and_keeps_its_experts(tmp_path):
    source, (state, parameters) = tmp_path / "source.pt", unpriced()
    prices = prices_of(priced()["model"])
    write_in_parts(source, state, parameters, 2)
    for path in (tmp_path / "target.pt", source):
        save_with_experts(put_prices(load_shared_part(source), prices, prices), source, path)
        assert_same(read_whole(path), put_prices(state, prices, prices))
        assert len(list(expert_folder(path).glob("*/*.pt"))) == 2 and len(list(expert_folder(path).iterdir())) == 1


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_those_without_prices_do_not_count_in_an_average(tmp_path, order):
    states = [priced(1), unpriced(2)[0], unpriced(3)[0]]
    found = average(save_all(tmp_path, *(states[index] for index in order)))["model"]
    assert list(found) == list(states[0]["model"])
    right = means(states[0]["model"])
    for key, value in means(found).items():
        torch.testing.assert_close(value, right[key])
    weight = "encoder.layers.1.moe.gate.weight"
    torch.testing.assert_close(found[weight], sum(state["model"][weight] for state in states) / 3)
    assert not prices_of(average(save_all(tmp_path, *states[1:]))["model"])


def test_models_in_half_precision_save_them_in_full(tmp_path):
    state = priced()
    model = moe_model(num_experts=4, **BASE).bfloat16()
    model.load_state_dict(state["model"])
    average = EMA(model, EMAConfig(store_ema=True, ema_decay=0.5))
    average.step(model)
    halves = {"model": model.state_dict(), "extra_state": {"ema": average.get_model().state_dict()}}
    [path] = save_all(tmp_path, halves)
    for named in (file_io.load(str(path))["model"], load_ema(str(path))["model"]):
        assert_same(prices_of(named), dict(prices_of(state["model"])))
