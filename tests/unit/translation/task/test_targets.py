"""Several targets of one source: a model can tell them apart, or a user insists and is warned."""

import pytest
from omegaconf import OmegaConf

from tests.helpers.digits import digit_task
from tests.helpers.models import SIZES, BaseMoEConfig, DenseConfig
from tests.helpers.refused import refused

NO_TOKENS = "{'main': (None, None)}"


def build(data, task, **model):
    kind, name = (BaseMoEConfig, "base_moe") if "expert_gates" in model else (DenseConfig, "base_dense")
    cfg = OmegaConf.structured(kind(**{**SIZES, **model}))
    cfg._name = name
    return digit_task(data, **{"encoder_langtok": None, **task}).build_model(cfg)


@pytest.mark.parametrize(("task", "model", "alike"), [
    ({"encoder_langtok": "src"}, {"expert_gates": "base"}, "aa, bb, cc"),
    ({"task_ids": "aa+cc"}, {"expert_gates": "task"}, "aa, cc"),
    ({"task_ids": "source"}, {"expert_gates": "fixed"}, "aa, bb, cc"),
    ({"lang_pairs": "aa-en,en-bb,bb-aa"}, {}, None),
    ({"decoder_langtok": True}, {}, None),
    ({}, {"expert_gates": "task,base"}, None),
    ({}, {"conditional": "bottleneck"}, None),
])  # fmt: skip
def test_a_training_needs_a_token_or_a_gate_of_the_target(digits, task, model, alike, caplog):
    model = model | ({"num_experts": 4} if "expert_gates" in model else {})
    if alike is None:
        build(digits, task, **model)
    else:
        with refused("--decoder-langtok", "--encoder-langtok tgt") as error:
            build(digits, task, **model)
        assert f" {alike} apart, the targets of en," in str(error.value)
        build(digits, {**task, "langtoks": NO_TOKENS}, **model)
        assert any(f" {alike} apart, the targets of en:" in message for message in caplog.messages)
