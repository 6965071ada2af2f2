"""`mtmoe calibrate` writes a checkpoint with prices, as it was otherwise, and loses none."""

import pytest
from click.testing import CliRunner

from fairseq_mtmoe.checkpoints.assemble import load_shared_part, whole
from fairseq_mtmoe.checkpoints.key_maps import prices_of, without_prices
from fairseq_mtmoe.checkpoints.rewriting import copy_with_experts
from fairseq_mtmoe.checkpoints.sharding import expert_folder
from fairseq_mtmoe.cli.main import commands
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.evaluation import calibration
from fairseq_mtmoe.evaluation.translator import Decoding, Translator
from tests.golden.old_runs import OLD, RUNS
from tests.helpers.refused import refused
from tests.helpers.states import assert_same
from tests.helpers.training import train_here

DATA = OLD / "data"
WHOLE, PARTS, DENSE = (OLD / name / "checkpoint_last.pt" for name in ("sparse", "parts", "dense"))


def calibrate(*arguments):
    arguments = ["calibrate", *map(str, arguments), "--updates", "2", "--cpu"]
    result = CliRunner().invoke(commands, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_models_are_then_evaluated_by_prices(tmp_path, caplog):
    out = tmp_path / "out.pt"
    calibrate(PARTS, out, DATA)
    for path, said in ((PARTS, True), (out, False)):
        caplog.clear()
        Translator(str(DATA), [str(path)], Decoding(beam=1, max_len_b=4, cpu=True)).translate("en-aa", "test")
        assert ("has no prices for its BASE layers" in caplog.text) == said


@pytest.mark.parametrize("checkpoint", [WHOLE, PARTS])
def test_a_checkpoint_stays_in_one_file_or_in_parts_with_prices(tmp_path, checkpoint):
    out = tmp_path / "out.pt"
    shown = calibrate(checkpoint, out, DATA)
    beside = f", experts in {expert_folder(out)}" if checkpoint == PARTS else ""
    assert shown.count("layers.0") == 2 and shown.endswith(f"{out}: prices of 2 updates{beside}\n")
    assert expert_folder(out).exists() == (checkpoint == PARTS)
    before, after = (whole(path, load_shared_part(path)) for path in (checkpoint, out))
    assert list(before["model"]) == list(without_prices(after["model"])) and len(prices_of(after["model"])) == 4
    before["cfg"]["model"]["base_evaluation"] = "prices"  # an option that can be overridden from now on
    assert_same({**after, "model": without_prices(after["model"])}, before)


def test_a_run_goes_on_from_it_as_it_would_have(tmp_path):
    """With the same moments and batches, and the prices."""
    (tmp_path / "without").mkdir()
    copy_with_experts(PARTS, tmp_path / "without" / PARTS.name)
    calibrate(PARTS, tmp_path / "with" / PARTS.name, DATA)
    runs = [train_here(DATA, tmp_path / name, *RUNS["parts"]) for name in ("without", "with")]
    assert runs[0]["norms"] == runs[1]["norms"] and len(runs[0]["norms"]) > 2
    assert all((runs[0]["prices"][key] != runs[1]["prices"][key]).any() for key in runs[0]["prices"])


def test_the_checkpoint_itself_may_be_replaced_when_told(tmp_path):
    name, path = PARTS, tmp_path / "model.pt"
    copy_with_experts(name, path)
    before = path.read_bytes()
    with refused("OUT", "--overwrite"):
        calibrate(path, path, DATA)
    assert path.read_bytes() == before
    calibrate(path, path, DATA, "--overwrite")
    other = tmp_path / "other.pt"
    calibrate(name, other, DATA)
    assert_same(whole(path, load_shared_part(path)), whole(other, load_shared_part(other)))
    assert name.read_bytes() == before


def test_what_cannot_be_calibrated_is_one_sentence_and_writes_nothing(tmp_path):
    for checkpoint, data, name in ((DENSE, DATA, DENSE.name), (WHOLE, OLD / "nothing", "data")):
        with refused(name):
            calibrate(checkpoint, tmp_path / "out.pt", data)
    assert not list(tmp_path.iterdir())


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


@pytest.mark.parametrize("out", ["out.bin", "file/out.pt"])
def test_what_cannot_be_written_is_said_before_the_work(tmp_path, monkeypatch, out):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("fairseq_mtmoe.evaluation.calibration.calibrate", None)  # would fail otherwise
    with pytest.raises(UserError):
        calibrate(PARTS, tmp_path / out, DATA)
