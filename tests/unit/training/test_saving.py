"""What each of several processes reads of a checkpoint that it goes on from."""

import pytest

from fairseq_mtmoe.checkpoints.reshard import write_in_parts
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.training.saving import _read_share
from tests.golden.old_runs import OLD, RUNS
from tests.helpers.opened import opened_from_now
from tests.helpers.trainers import trainer_here


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A checkpoint of four experts in two shards."""
    path = tmp_path_factory.mktemp("parts") / "checkpoint_last.pt"
    write_in_parts(OLD / "sparse" / "checkpoint_last.pt", path, 2)
    return path


def test_a_process_opens_each_file_once(parts, tmp_path):
    trainer = trainer_here(OLD / "data", tmp_path, *RUNS["sparse"])
    opened = opened_from_now()
    assert _read_share(trainer, str(parts))["model"]
    assert opened() == ["checkpoint_last.pt", "0-1.pt", "2-3.pt"]


def test_what_differs_is_said_without_opening_the_file_again(parts, tmp_path):
    trainer = trainer_here(OLD / "data", tmp_path, *RUNS["sparse"], "--num-experts", 2, "--encoder-embed-dim", 16)
    opened = opened_from_now()
    with pytest.raises(UserError, match=r"`--encoder-embed-dim` must be 8 .* to load `.*checkpoint_last\.pt`, but"):
        _read_share(trainer, str(parts))
    assert opened() == ["checkpoint_last.pt"]
