"""The GPU check: every part at toy sizes, on a CPU and on a pretended GPU; what is interrupted goes on."""

import importlib

import pytest

from tests.helpers.pretended_gpu import pretended_gpu


@pytest.fixture
def outcomes(tmp_path):
    """What the checks of a part find, by outcome; in this process."""
    from gpu_check.parts import PARTS
    from gpu_check.rows import Setting
    from gpu_check.run_part import attempt

    def run(name, device):
        setting = Setting(device, True, tmp_path)
        found = {}
        for check in importlib.import_module(f"gpu_check.{PARTS[name].module}").checks(setting):
            for row in attempt(check)[0]:
                found.setdefault(row.outcome, []).append(row)
        return found

    return run


@pytest.mark.parametrize("name", ["reference", "waits", "layer", "assignment", "step", "decode", "paper"])
def test_parts_run_where_mixing_devices_fails(outcomes, name):
    importlib.import_module("fairseq.trainer")  # what compiles its functions when it is imported: not pretended ones
    with pretended_gpu():
        found = outcomes(name, "cuda")
    assert "failed" not in found, found["failed"]
    assert found.keys() <= {"passed", "measured"}
