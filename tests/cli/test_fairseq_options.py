"""fairseq's own options keep working on sparse models, through sparsification.

`--bf16` is not among them: without CUDA fairseq takes it for a wish for a TPU. tests/unit/models has bfloat16.
"""

import re

import fairseq_cli.generate
import numpy as np
import pytest
import torch
from fairseq import options

from fairseq_mtmoe import register
from tests.helpers.benchmark import save_before_training
from tests.helpers.commands import generate, training_arguments
from tests.helpers.digits import make_digit_corpus
from tests.helpers.training import train_here


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_digit_corpus(tmp_path_factory.mktemp("digits"), train=300, valid=4)


@pytest.mark.parametrize(
    "chosen",
    [
        ("--fp16", "--fp16-no-flatten-grads", "--fp16-init-scale", 4),
        ("--checkpoint-activations",),
        ("--update-freq", 2, "--encoder-layerdrop", 0.2),
    ],
    ids=["fp16", "activation checkpointing", "update-freq and layerdrop"],
)
def test_training_option_across_sparsification(corpus, tmp_path, chosen):
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


def generate_here(data, path, folder) -> str:
    """`fairseq-generate` in this process."""
    register()
    arguments = [
        str(data), "--task", "translation_heated", "-s", "en", "-t", "bb", "--path", str(path), "--cpu",
        "--encoder-langtok", "tgt", "--decoder-langtok", "--score-reference", "--results-path", str(folder),
    ]  # fmt: skip
    fairseq_cli.generate.main(options.parse_args_and_arch(options.get_generation_parser(), arguments))
    return (folder / "generate-test.txt").read_text()


def test_ensemble_of_different_models(corpus, tmp_path):
    """An ensemble gives a token the mean of its models' probabilities, each with its own gates."""
    kinds = [("--expert-gates", "base,task"), ("--expert-gates", "task"), ("--arch", "base_dense_tiny")]
    paths = [tmp_path / str(number) / "model.pt" for number in range(len(kinds))]
    for path, kind in zip(paths, kinds, strict=True):
        path.parent.mkdir()
        save_before_training(training_arguments(corpus, path.parent, *kind), path)
    together = reference_scores(generate(corpus, ":".join(map(str, paths)), "bb", "--score-reference"))
    alone = [reference_scores(generate_here(corpus, path, path.parent)) for path in paths]
    assert len(together) > 50  # fairseq drops the last batch
    for number, found in together.items():
        each = np.stack([scores[number] for scores in alone])
        np.testing.assert_allclose(found, each.mean(0), rtol=5e-4)  # four digits are printed
        assert (np.ptp(each, axis=0) > 1e-3).any()
