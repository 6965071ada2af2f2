"""One untrained model for all tests of this folder."""

from argparse import Namespace

import pytest

from fairseq_mtmoe import register
from tests.helpers import untrained


@pytest.fixture(scope="session")
def stock(tmp_path_factory) -> Namespace:
    """`.data` and `.checkpoint` of a stock transformer; translations of en-aa have much in common with references."""
    register()
    folder = tmp_path_factory.mktemp("stock")
    data, checkpoint = untrained.make_data(folder / "data"), folder / "checkpoint.pt"
    untrained.save_model(data, checkpoint)
    untrained.imitate(data, checkpoint, "en-aa")
    return Namespace(data=data, checkpoint=checkpoint, folder=folder)
