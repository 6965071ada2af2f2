"""Which checkpoints a run has after each save: those of fairseq's own `save_checkpoint`, whatever the options."""

import importlib.util
import math
import os
from types import SimpleNamespace

import pytest
from fairseq import checkpoint_utils
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from fairseq_mtmoe import register
from fairseq_mtmoe.checkpoints import file_io
from tests.helpers.checkpoint_files import verify


@pytest.fixture(scope="module")
def stock():
    """fairseq's module as it is installed, in which nothing is replaced."""
    register()
    spec = importlib.util.find_spec("fairseq.checkpoint_utils")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Saving:
    """A trainer of one process that has nothing but what a save asks for, and its place in the data."""

    data_parallel_rank, is_data_parallel_master = 0, True
    should_save_checkpoint_on_current_rank = True

    def __init__(self, suffix=""):
        self.checkpoint_suffix = suffix
        self.task = SimpleNamespace(get_checkpoint_dict=lambda: {"task": 1})
        self.saved = []
        self.epoch, self.updates, self.is_end = 1, 0, False

    def get_model(self):
        return nn.Linear(1, 1)

    def expect_finite_weights(self):
        pass

    def consolidate_optimizer(self):
        pass

    def get_num_updates(self):
        return self.updates

    def end_of_epoch(self):
        return self.is_end

    def state_dict(self):
        return {"epoch": self.epoch}

    def save_checkpoint(self, filename, extra_state):
        self.saved.append((os.path.basename(filename), repr(extra_state)))
        file_io.save({"model": {}}, filename)
        return filename


def history(save_checkpoint, folder, options, moments, suffix):
    """The files after each save, what was saved, and the best loss at the end."""
    vars(save_checkpoint).pop("best", None)
    os.makedirs(folder)
    trainer, found = Saving(suffix), []
    cfg = SimpleNamespace(save_dir=str(folder), no_save=False, best_checkpoint_metric="loss", **options)
    for is_end, val_loss in moments:
        trainer.updates += 1
        trainer.is_end = is_end
        saved = save_checkpoint(cfg, trainer, trainer, val_loss)
        found.append((sorted(os.listdir(folder)), saved and os.path.basename(saved)))
        trainer.epoch += is_end
    return found, trainer.saved, repr(vars(save_checkpoint).pop("best", None))


SWITCHES = ("no_epoch_checkpoints", "no_last_checkpoints", "maximize_best_checkpoint_metric")
OPTIONS = st.fixed_dictionaries(
    {
        **dict.fromkeys(SWITCHES, st.booleans()),
        "write_checkpoints_asynchronously": st.just(False),
        "save_interval": st.integers(1, 2),
        "save_interval_updates": st.integers(0, 2),
        "keep_interval_updates": st.integers(-1, 2),
        "keep_interval_updates_pattern": st.sampled_from([-1, 3]),
        "keep_last_epochs": st.integers(-1, 2),
        "keep_best_checkpoints": st.integers(-1, 2),
    }
)
LOSSES = st.sampled_from([None, 0.5, 1.0, 1.5, 2.25, math.nan])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    options=OPTIONS,
    moments=st.lists(st.tuples(st.booleans(), LOSSES), min_size=1, max_size=8),
    suffix=st.sampled_from(["", "-shard0"]),
)
def test_the_same_files_are_written_and_removed(stock, tmp_path_factory, options, moments, suffix):
    folder = tmp_path_factory.mktemp("saves")
    right = history(stock.save_checkpoint, folder / "fairseq", options, moments, suffix)
    assert history(checkpoint_utils.save_checkpoint, folder / "ours", options, moments, suffix) == right


def test_copies_are_whole_and_with_asynchronous_writing_there_are_none(stock, tmp_path, caplog):
    options = dict.fromkeys(SWITCHES, False) | {
        "save_interval": 1, "save_interval_updates": 0, "keep_interval_updates": -1, "keep_last_epochs": -1,
        "keep_best_checkpoints": -1, "keep_interval_updates_pattern": -1,
    }  # fmt: skip
    copies = {"checkpoint_best.pt", "checkpoint_last.pt"}
    caplog.set_level("INFO")
    for waits, names in ((False, {"checkpoint1.pt", *copies}), (True, {"checkpoint1.pt"})):
        folder = tmp_path / str(waits)
        options["write_checkpoints_asynchronously"] = waits
        history(checkpoint_utils.save_checkpoint, folder, options, [(True, 1.0)], "")
        assert set(os.listdir(folder)) == names and all(verify(folder / name) for name in names)
    assert caplog.text.count("Preparing to save checkpoint for epoch 1 @ 1 updates") == 2
    assert caplog.text.count("is not written: with --write-checkpoints-asynchronously") == 2
