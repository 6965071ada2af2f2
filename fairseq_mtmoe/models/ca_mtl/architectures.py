"""The paper's sizes of CA-MTL, of BERT's or RoBERTa's encoders, and MiniLM's."""

from typing import Any

from fairseq_mtmoe.backbones.bert.model import BASE, LARGE, MINILM


def ca_mtl_large(args: Any) -> None:
    """The large size in the large form."""
    args.conditional_form = getattr(args, "conditional_form", None) or "large"
    LARGE(args)


SIZES = {"minilm": MINILM, "base": BASE, "large": ca_mtl_large}
