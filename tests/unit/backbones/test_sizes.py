"""Sizes that must be the pretrained model's."""

import json
from argparse import Namespace
from dataclasses import asdict

import pytest

import fairseq_mtmoe.models.ca_mtl  # noqa: F401  # which registers its architectures
from fairseq_mtmoe.backbones.bert import config as published
from fairseq_mtmoe.backbones.bert.model import SIZES
from fairseq_mtmoe.backbones.sizes import noted_sizes
from fairseq_mtmoe.errors import UserError


@pytest.mark.parametrize(
    ("arch", "hint"),
    [
        ("ca_mtl_base", "; `--arch ca_mtl` takes the sizes of any encoder."),
        ("ca_mtl", "."),
        ("of_nobody", "."),
    ],
)
def test_another_size_names_the_architecture_that_takes_any(arch, hint):
    known = asdict(published.BERT_LARGE)
    cfg = Namespace(_name=arch, encoder=json.dumps(known), **{option: known[name] for option, name in SIZES.items()})
    assert noted_sizes(cfg, "encoder", SIZES, "encoder", "glue") == known
    cfg.encoder_layers = 12
    with pytest.raises(UserError) as raised:
        noted_sizes(cfg, "encoder", SIZES, "encoder", "glue")
    assert str(raised.value) == f"`--encoder-layers` must be 24, as in the pretrained encoder, but is 12 instead{hint}"
