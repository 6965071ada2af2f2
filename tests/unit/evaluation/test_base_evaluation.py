"""Checkpoints with prices and without: what is translated by them, and what is said."""

import pytest
import torch

from fairseq_mtmoe import register
from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.moe.gates import base_gates
from tests.golden.old_runs import OLD
from tests.helpers.refused import refused

register()

from fairseq_mtmoe.evaluation.translator import Decoding, Translator  # noqa: E402


def translated(path, way=None):
    decoding = Decoding(beam=2, max_len_b=8, cpu=True, base_evaluation=way)
    return Translator(str(OLD / "data"), [str(path)], decoding).translate("en-aa", "test").hypotheses


@pytest.fixture
def priced(tmp_path):
    """The checkpoint of 0.1.0 with prices at which every token goes elsewhere."""
    state = file_io.load(str(OLD / "sparse" / "checkpoint_last.pt"))
    gates = [key.removesuffix("weight") for key in state["model"] if key.endswith("layers.0.moe.gate.weight")]
    for gate in gates:
        state["model"] |= {f"{gate}prices.total": torch.tensor([50.0, -50, 30, -30]) / 2}
        state["model"] |= {f"{gate}prices.weight": torch.tensor(0.5)}
    file_io.save(state, str(tmp_path / "priced.pt"))
    return tmp_path / "priced.pt"


def test_a_checkpoint_without_prices_is_evaluated_greedily_and_says_so(caplog):
    path = OLD / "sparse" / "checkpoint_last.pt"
    assert translated(path) == translated(path, "prices")
    (said, *_) = [message for message in caplog.messages if "has no prices" in message]
    assert f"`mtmoe calibrate {path} OUT DATA` gives it some" in said


def test_base_layers_route_as_the_checkpoint_says_or_as_asked(priced, caplog):
    greedy = translated(OLD / "sparse" / "checkpoint_last.pt")
    caplog.clear()
    assert translated(priced) == translated(priced, "prices") != greedy
    assert translated(priced, "greedy") == greedy
    assert "has no prices" not in caplog.text


def test_a_run_that_validates_in_balance_translates_by_prices(priced):
    state = file_io.load(str(priced))
    state["cfg"]["model"]["base_evaluation"] = "balanced"
    file_io.save(state, str(priced))
    translator = Translator(str(OLD / "data"), [str(priced)], Decoding(beam=2, max_len_b=8, cpu=True))
    translator.translate("en-aa", "test")
    assert {gate.routing.evaluation for gate in base_gates(translator.models[0])} == {"prices"}


def test_prices_of_another_number_of_experts_are_one_sentence(priced):
    state = file_io.load(str(priced))
    key = next(key for key in state["model"] if key.endswith("prices.total"))
    state["model"][key] = torch.zeros(3)
    file_io.save(state, str(priced))
    with refused("priced.pt", key, first=False):
        translated(priced)
