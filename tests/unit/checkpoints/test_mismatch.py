"""Why a checkpoint does not fit: the sentence names the option that it was trained with."""

import pytest
import torch
from torch import nn

from fairseq_mtmoe.checkpoints import mismatch
from tests.helpers.refused import refused

PARTS = {"conditional": "attention,norm", "conditional_positions": 9, "conditional_form": "base"}
BOTTLENECK = {"conditional": "bottleneck", "conditional_form": "base"}
CASES = {  # the options of the checkpoint and of the run, and those that the sentence names
    "parts": ({"conditional": "norm"}, PARTS, ["--conditional"]),
    "no parts there": ({**PARTS, "conditional": "none"}, PARTS, ["weight"]),
    "no parts here": (PARTS, {**PARTS, "conditional": "none"}, ["--conditional"]),
    "positions": (PARTS, {**PARTS, "conditional_positions": 5}, ["--conditional-positions"]),
    "positions of no part": ({**PARTS, "conditional": "norm"}, {"conditional_positions": 5}, ["weight"]),
    "a form": ({**BOTTLENECK, "conditional_form": "large"}, BOTTLENECK, ["--conditional-form"]),
    "a form of no part": ({**PARTS, "conditional_form": "large"}, PARTS, ["weight"]),
    "tied embeddings": ({"share_all_embeddings": False}, {"share_all_embeddings": True}, ["--share-all-embeddings"]),
}  # fmt: skip


def fail_to_load(saved_options, options, weights):
    model, state = nn.Linear(2, 3, bias=False), {"cfg": {"model": saved_options}, "model": weights}
    with mismatch.explained(model, options, [("x.pt", state)]):
        model.load_state_dict(weights)


@pytest.mark.parametrize(("there", "here", "names"), CASES.values(), ids=CASES)
def test_a_sentence_names_the_option_that_a_checkpoint_was_trained_with(there, here, names):
    with refused(first=False) as caught:
        fail_to_load(there, here, {"weight": torch.ones(4, 2)})
    assert caught.value.names[-1 if names == ["weight"] else 0] == names[0]


@pytest.mark.parametrize("part", ["encoder.layers.0.moe.gate.weight", "encoder.layers.0.mixture.weight"])
def test_an_architecture_without_such_parts_is_named(part):
    with refused("--arch", first=False):
        fail_to_load({}, {}, {"weight": torch.ones(3, 2), part: torch.ones(2)})
