"""Untrained models for all tests of this folder."""

from argparse import Namespace

import pytest
import torch

from fairseq_mtmoe import register
from tests.helpers import untrained


def make(folder, *options) -> Namespace:
    register()
    data, checkpoint = untrained.make_data(folder / "data"), folder / "checkpoint.pt"
    untrained.save_model(data, checkpoint, *options)
    references = untrained.imitate(data, checkpoint, "en-aa")
    return Namespace(data=data, checkpoint=checkpoint, references=references)


@pytest.fixture(scope="session")
def stock(tmp_path_factory) -> Namespace:
    """`.data` and `.checkpoint` of a stock transformer; what it translates of en-aa is much like `.references`."""
    return make(tmp_path_factory.mktemp("stock"))


@pytest.fixture(scope="session", params=["target", "pair"])
def sparse(request, tmp_path_factory) -> Namespace:
    """The same of a sparse model with task gates, whose tasks are target languages or pairs."""
    model = make(tmp_path_factory.mktemp("sparse"), *untrained.SPARSE, "--task-ids", request.param)
    state = torch.load(model.checkpoint)
    # The order of the pairs is the model's, not that of the task's options.
    state["cfg"]["task"]["lang_pairs"] = ",".join(reversed(untrained.PAIRS))
    torch.save(state, model.checkpoint)
    return model
