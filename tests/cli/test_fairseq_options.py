"""fairseq's own options keep working on sparse models, through the switch from dense to sparse.

`--bf16` is not among them: without CUDA fairseq takes it for a wish for a TPU. tests/unit/models has bfloat16.
"""

import pytest
import torch

from tests.helpers.commands import bleu_of, generate, train


@pytest.mark.parametrize(
    "options",
    [
        ("--fp16", "--fp16-no-flatten-grads", "--fp16-init-scale", 4),
        ("--checkpoint-activations",),
        ("--update-freq", 2, "--encoder-layerdrop", 0.2),
    ],
    ids=["fp16", "activation checkpointing", "update-freq and layerdrop"],
)
def test_training_option_across_the_switch(digits, tmp_path, options):
    stop = ("--max-update", 5, "--dense-updates", 2, "--expert-gates", "base,task")
    train(digits, tmp_path, *stop, *options)
    weights = torch.load(tmp_path / "checkpoint_last.pt")["model"]
    experts = [key for key in weights if key.endswith("experts.fc1_weight")]
    assert len(experts) == 4
    assert all(weights[key].isfinite().all() for key in weights)
    assert not torch.equal(weights[experts[0]][0], weights[experts[0]][1])


def test_ensemble_of_different_models(digits, tmp_path):
    kinds = {
        "a": ("--expert-gates", "base,task"),
        "b": ("--expert-gates", "task", "--seed", 2),
        "c": ("--arch", "base_dense_tiny"),
    }
    for name, options in kinds.items():
        train(digits, tmp_path / name, "--max-update", 4, *options)
    paths = ":".join(str(tmp_path / name / "checkpoint_last.pt") for name in kinds)
    assert 0 <= bleu_of(generate(digits, paths, "bb")) < 100
