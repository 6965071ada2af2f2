"""Sizes that must be the pretrained model's."""

import json
from argparse import Namespace
from dataclasses import asdict

import fairseq_mtmoe.nlu.ca_mtl  # noqa: F401  # which registers its architectures
from fairseq_mtmoe.core.sizes import noted_sizes
from fairseq_mtmoe.nlu.bert.config import BERT_LARGE
from fairseq_mtmoe.nlu.bert.model import SIZES
from tests.helpers.refused import refused


def test_another_size_names_the_architecture_that_takes_any():
    known = asdict(BERT_LARGE)
    sizes = {option: known[name] for option, name in SIZES.items()}
    cfg = Namespace(_name="ca_mtl_base", encoder=json.dumps(known), **sizes)
    assert noted_sizes(cfg, "encoder", SIZES, "encoder", "glue") == known
    cfg.encoder_layers = 12
    with refused("--encoder-layers", "--arch ca_mtl"):
        noted_sizes(cfg, "encoder", SIZES, "encoder", "glue")
