"""Tiny T5s, batches for them, and the models of Hugging Face's that they must equal."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_mtmoe.nlu.t5.config import GATED_GELU, T5Config
from fairseq_mtmoe.nlu.t5.key_map import KEYS
from fairseq_mtmoe.nlu.t5.model import T5Model, bare_state, whole_state
from fairseq_mtmoe.nlu.t5.pretrained import PretrainedT5
from tests.helpers.bert import perturb

# Heads that are wider together than the stream; few and near buckets, so that short texts reach them all.
TINY = T5Config(
    vocab_size=40, d_model=16, d_kv=6, d_ff=24, num_layers=2, num_decoder_layers=3, num_heads=4,
    relative_attention_num_buckets=8, relative_attention_max_distance=9,
)  # fmt: skip
TINY_1_1 = dataclasses.replace(
    TINY, feed_forward_proj=GATED_GELU, tie_word_embeddings=False, scale_decoder_outputs=False
)
CONFIGS = {"1.0": TINY, "1.1": TINY_1_1}
# Version 5 of `transformers` has these, too: a new T5 1.1, and a T5 1.0 whose output was trained apart.
ALL_CONFIGS = {
    **CONFIGS,
    "tied-unscaled": dataclasses.replace(TINY_1_1, tie_word_embeddings=True),
    "untied-scaled": dataclasses.replace(TINY, tie_word_embeddings=False, scale_decoder_outputs=True),
}
PIECES = b"\x00pieces\xff"
SPECIAL_PIECES = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}  # SentencePiece's options for T5's ids


def dictionary(config: T5Config = TINY) -> Dictionary:
    """fairseq's, in which tokens have T5's numbers."""
    symbols = Dictionary(bos="<pad>", pad="<pad>", eos="</s>", unk="<unk>")
    for number in range(len(symbols), config.vocab_size):
        symbols.add_symbol(f"p{number}")
    return symbols


def tiny_t5(config: T5Config = TINY, seed: int = 1) -> T5Model:
    torch.manual_seed(seed)
    return perturb(T5Model(config, dictionary(config)).eval())


def pretrained(config: T5Config = TINY) -> PretrainedT5:
    return PretrainedT5(config, PIECES, bare_state(tiny_t5(config).state_dict(), config))


def texts(sizes: tuple[int, ...] = (13, 4, 1), seed: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (len(sizes), max(sizes))
    tokens = torch.randint(3, TINY.vocab_size, shape, generator=generator)
    return tokens.masked_fill(torch.arange(shape[1]) >= torch.tensor(sizes).unsqueeze(1), TINY.pad_token_id)


def hugging_face_model(config: T5Config) -> Any:
    transformers = pytest.importorskip("transformers")
    values = {name: value for name, value in config.for_hugging_face().items() if name != "architectures"}
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**values)).eval()
    if not config.tie_word_embeddings:  # version 5 ties those of every new model
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return perturb(model)


def ours_of(theirs: Any, config: T5Config) -> T5Model:
    """Our model with the weights of Hugging Face's, in evaluation mode."""
    state = {KEYS[config.is_gated].our_key(name): value for name, value in theirs.state_dict().items()}
    ours = T5Model(config, dictionary(config)).eval()
    ours.load_state_dict(whole_state({name: value for name, value in state.items() if name is not None}, config))
    return ours
