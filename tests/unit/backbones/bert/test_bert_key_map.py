"""Hugging Face's names of parameters, old and new, and ours."""

import pytest

from fairseq_mtmoe.backbones.bert.encoder import BertEncoder
from fairseq_mtmoe.backbones.bert.key_map import MODULES, hugging_face_key, our_key
from tests.helpers.bert import TINY


def test_all_parameters_have_a_name_in_both():
    names = [*BertEncoder(TINY).state_dict()]
    theirs = [hugging_face_key(name) for name in names]
    assert len(set(theirs)) == len(names) and [our_key(name) for name in theirs] == names
    assert {name.rpartition(".")[0].replace(".1.", ".{}.").replace(".0.", ".{}.") for name in names} == {
        *MODULES.values()
    }


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("bert.embeddings.LayerNorm.gamma", "layernorm_embedding.weight"),
        ("bert.encoder.layer.10.attention.output.LayerNorm.beta", "layers.10.self_attn_layer_norm.bias"),
        ("roberta.encoder.layer.3.attention.self.query.bias", "layers.3.self_attn.q_proj.bias"),
        *((name, None) for name in ("cls.predictions.transform.LayerNorm.gamma", "lm_head.decoder.weight")),
        *((name, None) for name in ("classifier.dense.weight", "bert.embeddings.position_ids")),
    ],
)
def test_names_of_all_ages(theirs, ours):
    assert our_key(theirs) == ours


@pytest.mark.parametrize(
    "name",
    [
        *("", "weight", "bert.", "encoder.layer.x.output.dense.weight", "encoder.layer.01.output.dense.weight"),
        *("layers.0.fc1.weight", "bert.bert.pooler.dense.weight", "encoder.layer.{}.output.dense.weight"),
    ],
)
def test_other_names_are_nobodys(name):
    with pytest.raises(KeyError):
        our_key(name)
