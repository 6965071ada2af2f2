"""fairseq's own options keep working on sparse models."""

import re

import numpy as np
import torch

from tests.helpers.benchmark import save_before_training
from tests.helpers.commands import generate, training_arguments
from tests.helpers.digits import digit_fixture
from tests.helpers.training import train_here

corpus = digit_fixture(train=300, valid=4)


def test_training_options_across_sparsification(corpus, tmp_path):
    stop = ("--max-update", 5, "--dense-updates", 2, "--expert-gates", "base,task", "--max-tokens", 300)
    train_here(
        corpus, tmp_path, *stop, "--fp16", "--fp16-no-flatten-grads", "--fp16-init-scale", 4,
        "--checkpoint-activations", "--update-freq", 2, "--encoder-layerdrop", 0.2,
    )  # fmt: skip
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
