"""Models of `transformers` with a merged PEMT's prompt and adapters.

`mtmoe export-hf` copies this file into a model's folder. `from_pretrained(…, trust_remote_code=True)` loads the folder.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    BertForSequenceClassification,
    BertModel,
    RobertaForSequenceClassification,
    RobertaModel,
    T5ForConditionalGeneration,
)


class Adapters(nn.Module):
    """Adapters of a feed-forward layer: z + up(gelu(down z)).

    z is the layer's output plus a bottleneck of its input.
    """

    def __init__(self, width: int, target: int, beside: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, target), nn.Linear(target, width)
        if beside:
            self.narrow, self.widen = nn.Linear(width, beside), nn.Linear(beside, width)
        self.has_bottleneck = bool(beside)
        self.inputs: Any = None

    def stand_at(self, first: nn.Module, last: nn.Module) -> None:
        """Hook into a feed-forward layer from the module `first` to the module `last`."""
        first.register_forward_pre_hook(self._read)
        last.register_forward_hook(self._write)

    def _read(self, module: nn.Module, inputs: Any) -> None:
        self.inputs = inputs[0]

    def _write(self, module: nn.Module, inputs: Any, z: Tensor) -> Tensor:
        x, self.inputs = self.inputs, None
        if self.has_bottleneck:
            z = z + self.widen(F.relu(self.narrow(x)))
        added: Tensor = self.up(F.gelu(self.down(z), approximate="tanh"))
        return z + added


def mask_of(mask: Tensor | None, words: Tensor) -> Tensor:
    return torch.ones(words.shape[:2], dtype=torch.long, device=words.device) if mask is None else mask


class PemtT5ForConditionalGeneration(T5ForConditionalGeneration):
    """A T5 whose encoder reads the prompt before each text."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        parts = config.pemt
        blocks: list[Any] = [*self.encoder.block, *self.decoder.block]
        for layer in (block.layer[-1] for block in blocks):
            layer.adapters = Adapters(config.d_model, parts["target"], parts["beside"])
            layer.adapters.stand_at(layer.DenseReluDense, layer.DenseReluDense)
        if parts["prompt"]:
            self.prompt = nn.Parameter(torch.zeros(parts["prompt"], config.d_model))
            self.encoder.register_forward_pre_hook(self._add_prompt, with_kwargs=True)
        self.post_init()

    def _add_prompt(self, encoder: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        given = {**dict(zip(("input_ids", "attention_mask"), args, strict=False)), **kwargs}
        ids, words = given.pop("input_ids", None), given.pop("inputs_embeds", None)
        words = encoder.embed_tokens(ids) if words is None else words
        prompt = self.prompt.to(words.dtype).expand(len(words), -1, -1)
        mask = F.pad(mask_of(given.pop("attention_mask", None), words), (len(self.prompt), 0), value=1)
        return (), {**given, "inputs_embeds": torch.cat([prompt, words], 1), "attention_mask": mask}

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        encoder_outputs: Any = None,
        inputs_embeds: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Compute as T5 does; the decoder also reads the prompt's states."""
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds
            )
        states = encoder_outputs[0]
        mask = mask_of(attention_mask, states)
        mask = F.pad(mask, (states.shape[1] - mask.shape[1], 0), value=1)
        return super().forward(attention_mask=mask, encoder_outputs=encoder_outputs, **kwargs)


def add_prompt(encoder: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Add the prompt after each text, as tokens of the first type without positions.

    A forward pre-hook.
    """
    names = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    ids, table, length = given.pop("input_ids"), encoder.embeddings, len(encoder.prompt)
    first = 0
    positions = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
    if encoder.config.model_type == "roberta":
        first, real = encoder.config.pad_token_id + 1, ids.ne(encoder.config.pad_token_id).long()
        positions = real.cumsum(1) * real + encoder.config.pad_token_id
    words, types = table.word_embeddings(ids), given.get("token_type_ids")
    without_position = encoder.prompt - table.position_embeddings.weight[first]  # the embedding adds it again
    given |= {
        "inputs_embeds": torch.cat([words, without_position.to(words.dtype).expand(len(ids), -1, -1)], 1),
        "attention_mask": F.pad(mask_of(given.get("attention_mask"), words), (0, length), value=1),
        "token_type_ids": F.pad(torch.zeros_like(ids) if types is None else types, (0, length)),
        "position_ids": F.pad(positions, (0, length), value=first),
    }
    return (), given


def remove_prompt(encoder: Any, inputs: Any, output: Any) -> Any:
    """Return the output without the prompt's states; a forward hook."""
    if isinstance(output, tuple):
        return (output[0][:, : -len(encoder.prompt)], *output[1:])
    output.last_hidden_state = output.last_hidden_state[:, : -len(encoder.prompt)]
    return output


class Adapted(nn.Module):
    """Mixin that adds a prompt and adapters to a BERT or RoBERTa."""

    post_init: Any

    def __init__(self, config: Any, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        parts: Any = config.pemt
        encoder: Any = getattr(self, config.model_type, self)
        for layer in encoder.encoder.layer:
            layer.adapters = Adapters(config.hidden_size, parts["target"], parts["beside"])
            layer.adapters.stand_at(layer.intermediate, layer.output.dense)
        if parts["prompt"]:
            encoder.prompt = nn.Parameter(torch.zeros(parts["prompt"], config.hidden_size))
            encoder.register_forward_pre_hook(add_prompt, with_kwargs=True)
            encoder.register_forward_hook(remove_prompt)
        self.post_init()


class PemtBertModel(Adapted, BertModel):
    """BERT without a head."""


class PemtRobertaModel(Adapted, RobertaModel):
    """RoBERTa without a head."""


class PemtBertForSequenceClassification(Adapted, BertForSequenceClassification):
    """BERT with a task's head."""


class PemtRobertaForSequenceClassification(Adapted, RobertaForSequenceClassification):
    """RoBERTa with a task's head."""
