"""Tiny encoders, batches for them, and the models of Hugging Face's that they must equal."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from fairseq_mtmoe.conditioning import PARTS, with_new_conditions
from fairseq_mtmoe.nlu.bert import encoder as encoder_module
from fairseq_mtmoe.nlu.bert.config import BERT, MINILM, ROBERTA, EncoderConfig, read_config
from fairseq_mtmoe.nlu.bert.encoder import BertEncoder
from fairseq_mtmoe.nlu.bert.key_map import KEYS
from fairseq_mtmoe.nlu.bert.pretrained import PretrainedEncoder
from fairseq_mtmoe.nlu.bert.unpadding import UnpaddedBatch
from fairseq_mtmoe.slots.blocks import Conditions

TINY = EncoderConfig(
    vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
    max_position_embeddings=24, layer_norm_eps=1e-3,
)  # fmt: skip
TINY_ROBERTA = dataclasses.replace(TINY, model_type=ROBERTA, pad_token_id=1, type_vocab_size=1)
NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
CONFIGS = {BERT: TINY, ROBERTA: TINY_ROBERTA, "minilm": MINILM}
AnyModule = TypeVar("AnyModule", bound=torch.nn.Module)
TOKENIZER = {"vocab.txt": "[PAD]\r\nä\n", "tokenizer_config.json": '{"do_lower_case": true}'}


def perturb(model: AnyModule, scale: float = 0.1, seed: int = 7) -> AnyModule:
    """The model, all of whose parameters now differ from their initial values, and experts from each other."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += scale * torch.randn(parameter.shape, generator=generator)
    return model


def tiny_encoder(config: EncoderConfig = TINY, seed: int = 1, **options: Any) -> BertEncoder:
    """A dense encoder in evaluation mode, with parameters that matter; `options` are those of `BertEncoder`."""
    torch.manual_seed(seed)
    return perturb(BertEncoder(config, **options).eval())


def conditional_encoder(
    config: EncoderConfig = TINY, parts: Iterable[str] = PARTS, is_large: bool = False, scale: float = 0.2
) -> BertEncoder:
    """A dense encoder with parts that adapt to 3 tasks; at a `scale` of 0 with the dense one's parameters."""
    plain = tiny_encoder(config)
    torch.manual_seed(2)
    conditions = Conditions(frozenset(parts), 3, config.hidden_size, 5, is_large)
    encoder = BertEncoder(config, conditions=conditions).eval()
    encoder.load_state_dict(with_new_conditions(encoder, plain.state_dict()))
    return perturb(encoder, scale)


def pretrained(config: EncoderConfig = TINY, seed: int = 1) -> PretrainedEncoder:
    return PretrainedEncoder(config, dict(TOKENIZER), tiny_encoder(config, seed).state_dict())


def batch(config: EncoderConfig = TINY, sizes: tuple[int, ...] = (7, 4, 6), seed: int = 3) -> dict[str, Tensor]:
    """Sentences of these lengths, padded on the right, and the tokens' types."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(sizes), max(sizes))
    mask = torch.arange(shape[1]) >= torch.tensor(sizes).unsqueeze(1)
    tokens = torch.randint(config.pad_token_id + 1, config.vocab_size, shape, generator=generator)
    types = torch.randint(config.type_vocab_size, shape, generator=generator)
    return {"tokens": tokens.masked_fill(mask, config.pad_token_id), "token_type_ids": types}


def hugging_face_model(config: EncoderConfig) -> Any:
    transformers = pytest.importorskip("transformers")
    values = {name: value for name, value in config.for_hugging_face().items() if name != "architectures"}
    torch.manual_seed(0)
    theirs = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    return perturb(transformers.AutoModel.from_config(theirs).eval(), 0.1 if config.hidden_size < 100 else 0.02)


def ours_of(theirs: Any, **options: Any) -> BertEncoder:
    """Our encoder with the weights of Hugging Face's model, in evaluation mode."""
    state = {KEYS.our_key(name): value for name, value in theirs.state_dict().items()}
    ours = BertEncoder(read_config(theirs.config.to_dict(), has_pooler="pooler.weight" in state), **options).eval()
    ours.load_state_dict(state)
    return ours


def theirs_of(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """The states of Hugging Face's model, 0 at padding."""
    real = inputs["tokens"].ne(model.config.pad_token_id).long()
    states: Tensor = model(inputs["tokens"], real, inputs["token_type_ids"]).last_hidden_state
    return states * real.unsqueeze(-1)


def in_all_places(monkeypatch: pytest.MonkeyPatch, *modules: Any) -> None:
    """Let the blocks compute at padding, too, as on a GPU; `modules` are those that unpad beside the encoder's own."""
    for module in (encoder_module, *modules):
        monkeypatch.setattr(module, "unpadded", lambda mask, ids=None: UnpaddedBatch(tuple(mask.shape), mask, ids))


def built(encoder: PretrainedEncoder) -> BertEncoder:
    model = BertEncoder(encoder.config)
    model.load_state_dict(encoder.state)
    return model
