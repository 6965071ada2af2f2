"""Several targets of one source: a model can tell them apart, or a user insists and is warned."""

import pytest
from omegaconf import OmegaConf

from fairseq_mtmoe.evaluation.decode import Decoding
from fairseq_mtmoe.evaluation.text_translator import TextTranslator
from fairseq_mtmoe.evaluation.translator import Translator
from fairseq_mtmoe.tasks.translation import targets
from tests.helpers import untrained
from tests.helpers.digits import digit_task
from tests.helpers.models import SIZES, BaseMoEConfig, DenseConfig
from tests.helpers.refused import refused
from tests.helpers.translated_text import make_text_data

NO_TOKENS = "{'main': (None, None)}"
DENSE = ("--task", "translation_heated", "--arch", "base_dense_tiny", "--langtoks", NO_TOKENS, "--lang-pairs",
         ",".join(untrained.PAIRS))  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_was_said():
    targets._warn.cache_clear()


def build(data, task, **model):
    kind, name = (BaseMoEConfig, "base_moe") if "expert_gates" in model else (DenseConfig, "base_dense")
    cfg = OmegaConf.structured(kind(**{**SIZES, **model}))
    cfg._name = name
    return digit_task(data, **{"encoder_langtok": None, **task}).build_model(cfg)


@pytest.mark.parametrize(("task", "model", "alike"), [
    ({}, {}, "aa, bb and cc"),
    ({"encoder_langtok": "src"}, {"expert_gates": "base"}, "aa, bb and cc"),
    ({"task_ids": "aa+cc"}, {"expert_gates": "task"}, "aa and cc"),
    ({"task_ids": "source"}, {"expert_gates": "fixed"}, "aa, bb and cc"),
    ({"lang_pairs": "aa-en,en-bb,bb-aa"}, {}, None),
    ({"encoder_langtok": "tgt"}, {}, None),
    ({"decoder_langtok": True}, {}, None),
    ({}, {"expert_gates": "task,base"}, None),
    ({}, {"expert_gates": "fixed", "dense_updates": 5}, None),
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
        assert f" {alike} apart, the targets of en:" in caplog.messages[-1]


def test_using_a_model_without_tokens_warns_once(tmp_path, caplog):
    data, path = make_text_data(tmp_path / "data"), tmp_path / "model.pt"
    untrained.save_model(data, path, *DENSE)
    for use in (lambda: TextTranslator([str(path)]), lambda: Translator(str(data), [str(path)], Decoding())):
        targets._warn.cache_clear()
        caplog.clear()
        translator = use()
        for target in ("aa", "bb"):
            if isinstance(translator, TextTranslator):
                translator.translate(["bo da"], source="en", target=target, max_len_b=3)
            else:
                translator.pair_data(f"en-{target}", "test")
        assert sum("aa, bb and cc apart" in message for message in caplog.messages) == 1
