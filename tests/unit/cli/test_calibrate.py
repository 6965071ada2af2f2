"""`mtmoe calibrate` writes a checkpoint with prices, as it was otherwise, and loses none."""

from functools import partial

import pytest

from fairseq_mtmoe.checkpoints.assemble import load_shared_part, whole
from fairseq_mtmoe.checkpoints.key_maps import prices_of, without_prices
from fairseq_mtmoe.checkpoints.rewriting import copy_with_experts
from fairseq_mtmoe.checkpoints.sharding import expert_folder
from fairseq_mtmoe.evaluation import calibration
from tests.golden.old_runs import OLD
from tests.helpers.invoked import mtmoe
from tests.helpers.refused import refused
from tests.helpers.states import assert_same

calibrate = partial(mtmoe, "calibrate", "--updates", 2, "--cpu")
DATA = OLD / "data"
WHOLE, PARTS, DENSE = (OLD / name / "checkpoint_last.pt" for name in ("sparse", "parts", "dense"))


@pytest.mark.parametrize("checkpoint", [WHOLE, PARTS])
def test_a_checkpoint_stays_in_one_file_or_in_parts_with_prices_and_may_be_replaced_when_told(tmp_path, checkpoint):
    out = tmp_path / "out.pt"
    shown = calibrate(checkpoint, out, DATA)
    beside = f", experts in {expert_folder(out)}" if checkpoint == PARTS else ""
    assert shown.count("layers.0") == 2 and shown.endswith(f"{out}: prices of 2 updates{beside}\n")
    assert expert_folder(out).exists() == (checkpoint == PARTS)
    before, after = (whole(path, load_shared_part(path)) for path in (checkpoint, out))
    assert list(before["model"]) == list(without_prices(after["model"])) and len(prices_of(after["model"])) == 4
    before["cfg"]["model"]["base_evaluation"] = "prices"  # an option that can be overridden from now on
    assert_same({**after, "model": without_prices(after["model"])}, before)
    itself = tmp_path / "model.pt"
    copy_with_experts(checkpoint, itself)
    with refused("OUT", "--overwrite"):
        calibrate(itself, itself, DATA)
    assert itself.read_bytes() == checkpoint.read_bytes()
    calibrate(itself, itself, DATA, "--overwrite")
    assert_same(whole(itself, load_shared_part(itself)), after)


def test_a_checkpoint_that_its_run_replaced_meanwhile_is_not_written_over(tmp_path, monkeypatch):
    path = tmp_path / "model.pt"
    copy_with_experts(WHOLE, path)
    original = calibration.iterators.GroupedIterator

    def replacing(*args, **kwargs):
        copy_with_experts(WHOLE, path)
        return original(*args, **kwargs)

    monkeypatch.setattr(calibration.iterators, "GroupedIterator", replacing)
    before = path.read_bytes()
    with refused("model.pt"):
        calibrate(path, path, DATA, "--overwrite")
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_calibrated_or_written_is_said_and_nothing_is_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with refused(DENSE.name):
        calibrate(DENSE, tmp_path / "out.pt", DATA)
    monkeypatch.setattr("fairseq_mtmoe.evaluation.calibration.calibrate", None)  # would fail otherwise
    for out in ("out.bin", "file/out.pt"):
        with refused():
            calibrate(PARTS, tmp_path / out, DATA)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
