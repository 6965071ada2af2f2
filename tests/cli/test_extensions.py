"""fairseq's C++ extensions for torch, which run with one build of torch alone, are needed by nothing of ours."""

import os
import subprocess

import pytest

from fairseq_mtmoe.checkpoints import assemble
from tests.helpers.commands import BIN, ENVIRONMENT, REPOSITORY, training_arguments
from tests.helpers.digits import make_digit_corpus

BROKEN = """
import sys

class Broken:
    def find_spec(self, name, path=None, target=None):
        if name in ("fairseq.libbase", "fairseq.libnat", "alignment_train_cpu_binding"):
            raise ImportError("undefined symbol: _ZN3c10")

sys.meta_path.insert(0, Broken())
"""
TRAIN = """
try:
    import fairseq.libbase
except ImportError as error:
    print(error)
from fairseq_cli.train import cli_main
cli_main()
"""


@pytest.mark.slow
def test_a_sparse_model_trains_where_they_do_not_load(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"}
    corpus = make_digit_corpus(tmp_path / "digits", train=60, valid=4, test=4)
    arguments = training_arguments(corpus, tmp_path / "run", "--num-experts", 2, "--max-update", 2)
    command = [BIN / "python", "-c", TRAIN, *map(str, arguments)]
    run = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.startswith("undefined symbol")
    shared_part = assemble.load_shared_part(tmp_path / "run" / "checkpoint_last.pt")
    assert shared_part["optimizer_history"][-1]["num_updates"] == 2
