"""fairseq's own options keep working on sparse models, and these where fairseq's C++ extensions are broken."""

import os
import re
import subprocess

import numpy as np
import pytest
import torch

from fairseq_mtmoe.checkpoints.assemble import load_shared_part
from tests.golden.runs import FROZEN
from tests.helpers.benchmark import save_before_training
from tests.helpers.commands import BIN, ENVIRONMENT, REPOSITORY, generate, training_arguments
from tests.helpers.digits import digit_fixture
from tests.helpers.rare import rarely
from tests.helpers.training import train_here

corpus = digit_fixture(train=300, valid=4)
HALF = ("--fp16", "--fp16-no-flatten-grads", "--fp16-init-scale", 4)
CHOSEN = {
    "fp16": HALF,
    "activation checkpointing": ("--checkpoint-activations",),
    "update-freq and layerdrop": ("--update-freq", 2, "--encoder-layerdrop", 0.2),
    "all": (*HALF, "--checkpoint-activations", "--update-freq", 2, "--encoder-layerdrop", 0.2),
}


@pytest.mark.parametrize(
    "chosen", rarely(CHOSEN, *list(CHOSEN)[:-1], given={name: (of,) for name, of in CHOSEN.items()})
)
def test_training_options_across_sparsification(chosen, corpus, tmp_path):
    stop = ("--max-update", 5, "--dense-updates", 2, "--expert-gates", "base,task", "--max-tokens", 300)
    train_here(corpus, tmp_path, *stop, *chosen)
    weights = torch.load(tmp_path / "checkpoint_last.pt")["model"]
    experts = [key for key in weights if key.endswith("experts.fc1_weight")]
    assert len(experts) == 4
    assert all(weights[key].isfinite().all() for key in weights)
    assert not torch.equal(weights[experts[0]][0], weights[experts[0]][1])


def reference_scores(output: str) -> dict[int, np.ndarray]:
    """What fairseq-generate printed of each reference: the probability of every token."""
    rows = re.findall(r"^P-(\d+)\t(.*)$", output, flags=re.MULTILINE)
    return {int(number): 2 ** np.array(row.split(), dtype=float) for number, row in rows}


def test_ensemble_of_different_models(corpus, tmp_path):
    """An ensemble gives a token the mean of its models' probabilities, each with its own gates."""
    kinds = [("--expert-gates", "base,task"), ("--expert-gates", "task"), ("--arch", "base_dense_tiny")]
    paths = [tmp_path / str(number) / "model.pt" for number in range(len(kinds))]
    for path, kind in zip(paths, kinds, strict=True):
        path.parent.mkdir()
        save_before_training(training_arguments(corpus, path.parent, *kind), path)
    together, *alone = (
        reference_scores(generate(corpus, path, "bb", "--score-reference"))
        for path in (":".join(map(str, paths)), *paths)
    )
    assert len(together) > 50  # fairseq drops the last batch
    for number, found in together.items():
        each = np.stack([scores[number] for scores in alone])
        np.testing.assert_allclose(found, each.mean(0), rtol=5e-4)  # four digits are printed
        assert (np.ptp(each, axis=0) > 1e-3).any()


# ---- fairseq's C++ extensions for torch, which run with one build of torch alone ----

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


@pytest.mark.rare
def test_a_sparse_model_trains_where_extensions_do_not_load(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"}
    arguments = training_arguments(FROZEN / "data", tmp_path / "run", "--num-experts", 2, "--max-update", 2)
    command = [BIN / "python", "-c", TRAIN, *map(str, arguments)]
    run = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True)
    assert run.returncode == 0 and run.stdout.startswith("undefined symbol"), run.stderr[-3000:]
    assert load_shared_part(tmp_path / "run" / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"] == 2
