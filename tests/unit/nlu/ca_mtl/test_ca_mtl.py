"""The model: its options, its sizes, and what it loads."""

import json
from argparse import Namespace
from dataclasses import asdict

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY

from fairseq_mtmoe.conditioning import conditional_names
from fairseq_mtmoe.core.sizes import noted_sizes
from fairseq_mtmoe.nlu.bert.config import BERT_LARGE
from fairseq_mtmoe.nlu.bert.model import SIZES
from fairseq_mtmoe.nlu.ca_mtl import CAMTLModel
from fairseq_mtmoe.nlu.ca_mtl.model import CAMTLConfig
from tests.helpers import encoders
from tests.helpers.encoders import HEADS, all_numbers, built, conditional_encoder, dense_encoder, tag_model, task_batch
from tests.helpers.refused import refused


def test_what_cannot_be_is_refused():
    with refused("--conditional"):
        conditional_encoder(conditional="norm,colour")
    with refused("--freeze-layers"):
        conditional_encoder(freeze_layers="3")
    with refused("--conditional", "--task glue"):  # the task tells no tasks apart
        built(CAMTLModel, CAMTLConfig(), 1)


def test_a_named_size_is_of_the_pretrained_encoder():
    args = Namespace(_name="ca_mtl_large", encoder_layers=3, encoder=json.dumps(asdict(BERT_LARGE)))
    ARCH_CONFIG_REGISTRY["ca_mtl_large"](args)
    assert (args.encoder_layers, args.encoder_embed_dim, args.conditional_form) == (3, 1024, "large")
    with refused("--encoder-layers", "--arch ca_mtl"):
        noted_sizes(args, "encoder", SIZES, "encoder", "glue")
    args.encoder_layers = BERT_LARGE.num_hidden_layers
    assert noted_sizes(args, "encoder", SIZES, "encoder", "glue") == asdict(BERT_LARGE)


def test_without_parts_it_is_a_plain_encoder_with_a_frozen_half():
    model = conditional_encoder(conditional="none", freeze_layers="half")
    assert not [*conditional_names(model)]
    trains = {name.split(".")[2] for name, parameter in model.encoder.named_parameters(prefix="encoder.x")
              if parameter.requires_grad}  # fmt: skip
    assert trains == {"layers"} and not model.encoder.layers[0].fc1.weight.requires_grad
    assert all(parameter.requires_grad for parameter in model.encoder.layers[1].parameters())


@pytest.mark.parametrize("make", [conditional_encoder, lambda **options: tag_model(dense_updates=1, **options)])
def test_a_dense_models_checkpoint_begins_with_new_parts_for_some_of_its_tasks(make, monkeypatch):
    dense = dense_encoder()
    monkeypatch.setattr(encoders, "HEADS", {"words": HEADS["words"], "three": HEADS["three"]})  # the last one is first
    model = make(conditional="attention,norm")
    model.load_state_dict(dense.state_dict())
    assert all(torch.equal(head.weight, dense.heads[task].weight) for task, head in model.heads.items())
    assert model.encoder.task_embeddings.weight.shape[0] == 2


def test_a_checkpoint_of_other_parts_is_not_filled_up():
    saved = conditional_encoder(conditional="norm").state_dict()
    with pytest.raises(RuntimeError, match="attention_bias"):
        conditional_encoder(conditional="norm,attention").load_state_dict(saved)


def test_experts_in_frozen_blocks_are_frozen_and_those_above_train():
    model = tag_model(freeze_layers="1", conditional="norm")
    moe = [block.moe for block in model.encoder.layers]
    assert not any(parameter.requires_grad for parameter in moe[0].parameters())
    assert all(parameter.requires_grad for parameter in moe[1].parameters())
    all_numbers(model.train()(**task_batch())).sum().backward()
    without = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    assert without == {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
