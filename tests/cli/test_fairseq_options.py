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
from tests.helpers.commands import generate, train


@pytest.mark.parametrize(
    "chosen",
    [
        ("--fp16", "--fp16-no-flatten-grads", "--fp16-init-scale", 4),
        ("--checkpoint-activations",),
        ("--update-freq", 2, "--encoder-layerdrop", 0.2),
    ],
    ids=["fp16", "activation checkpointing", "update-freq and layerdrop"],
)
def test_training_option_across_sparsification(digits, tmp_path, chosen):
    stop = ("--max-update", 5, "--dense-updates", 2, "--expert-gates", "base,task")
    train(digits, tmp_path, *stop, *chosen)
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


def test_ensemble_of_different_models(digits, tmp_path):
    """An ensemble gives a token the mean of its models' probabilities, each with its own gates."""
    kinds = {
        "a": ("--expert-gates", "base,task"),
        "b": ("--expert-gates", "task", "--seed", 2),
        "c": ("--arch", "base_dense_tiny"),
    }
    for name, kind in kinds.items():
        train(digits, tmp_path / name, "--max-update", 4, *kind)
    paths = [tmp_path / name / "checkpoint_last.pt" for name in kinds]
    together = reference_scores(generate(digits, ":".join(map(str, paths)), "bb", "--score-reference"))
    alone = [reference_scores(generate_here(digits, path, path.parent)) for path in paths]
    assert len(together) > 50  # fairseq drops the last batch
    for number, found in together.items():
        each = np.stack([scores[number] for scores in alone])
        np.testing.assert_allclose(found, each.mean(0), rtol=5e-4)  # four digits are printed
        assert (np.ptp(each, axis=0) > 1e-3).any()
