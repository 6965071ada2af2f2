"""fairseq's commands find the experts of a checkpoint in parts, and build whole models."""

import pytest
import torch
from fairseq import checkpoint_utils

from fairseq_mtmoe import register
from fairseq_mtmoe.checkpoints import assemble
from fairseq_mtmoe.checkpoints.loading import within
from fairseq_mtmoe.moe.parallel.placement import are_whole

register()


def test_fairseq_reads_all_experts_and_moments_of_a_checkpoint_in_parts(checkpoint, parts):
    found, state = checkpoint_utils.load_checkpoint_to_cpu(str(parts)), checkpoint[0]
    assert list(found["model"]) == list(state["model"])
    assert all(torch.equal(found["model"][key], value) for key, value in state["model"].items())
    assert len(found["last_optimizer_state"]["state"]) == len(state["last_optimizer_state"]["state"])


def test_models_for_generation_are_whole_and_read_no_moments(parts, monkeypatch):
    seen = []

    def build(*args, **kwargs):
        seen.append((are_whole(), checkpoint_utils.load_checkpoint_to_cpu(str(parts))))
        raise KeyboardInterrupt

    monkeypatch.setattr("fairseq.tasks.setup_task", build)
    with pytest.raises(KeyboardInterrupt):
        checkpoint_utils.load_model_ensemble_and_task([str(parts)])
    [(is_whole, state)] = seen
    assert is_whole and not are_whole()
    assert "last_optimizer_state" not in state and any(".moe.experts." in key for key in state["model"])


def test_by_a_read_function_fairseq_gets_what_the_function_returns(parts):
    with within(read=lambda asked: {**assemble.load_shared_part(asked), "asked": asked}):
        found = checkpoint_utils.load_checkpoint_to_cpu(str(parts))
    assert found["asked"] == str(parts) and not any(".moe.experts." in key for key in found["model"])
    assert found["cfg"].model._name == "base_moe"  # fairseq's upgrade of a dict
