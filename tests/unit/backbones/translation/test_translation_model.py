"""The transformer with expert slots, beside fairseq's own."""

from functools import partial

import pytest
import torch
from fairseq.dataclass.configs import EMAConfig
from fairseq.models.ema.ema import EMA
from torch import nn

from fairseq_mtmoe.backbones.translation.blocks import DecoderBlock, EncoderBlock
from fairseq_mtmoe.backbones.translation.stacks import Decoder, Encoder
from fairseq_mtmoe.slots import expert_layers
from tests.helpers.models import (
    MARIAN,
    SIZES,
    TASKS,
    BaseMoEModel,
    DenseConfig,
    batch,
    dense_model,
    moe_model,
    perturb,
)
from tests.helpers.refused import refused


def test_a_moving_average_keeps_the_last_norms():
    """fairseq's average has no `version` in its state, and a state without one loses these norms in fairseq."""
    model = moe_model(encoder_normalize_before=True, decoder_normalize_before=True)
    average = EMA(model, EMAConfig(store_ema=True, ema_decay=0.0))  # that is, the model itself
    average.step(model)
    kept = average.get_model()
    assert set(kept.state_dict()) == set(model.state_dict())
    assert torch.equal(kept(**batch())[0], model(**batch())[0])


def test_the_row_that_a_decoder_begins_with_is_not_trained():
    """The logits have the row, too; what serves the model begins with zeros."""
    model = dense_model(**MARIAN).train()
    before = model.decoder.embed_tokens.weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(**batch())[0].log_softmax(2)[..., 5].sum().neg().backward()
        optimizer.step()
    changed = (model.decoder.embed_tokens.weight != before).any(1)
    assert not before[1].any() and changed.tolist() == [row != 1 for row in range(len(before))]


class Shifted:
    """Mixed into a block: its self-attention's output moves by a vector of each sentence's task."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.shift = nn.Embedding(len(TASKS), self.embed_dim)

    def attend(self, x, context, *others):
        return super().attend(x, context, *others) + self.shift(context.task_ids)


class ShiftedEncoderBlock(Shifted, EncoderBlock): ...


class ShiftedDecoderBlock(Shifted, DecoderBlock): ...


class ShiftedEncoder(Encoder):
    def build_encoder_layer(self, cfg):
        return self.fill_next(ShiftedEncoderBlock(cfg), cfg)


class ShiftedDecoder(Decoder):
    def build_decoder_layer(self, cfg, no_encoder_attn=False):
        return self.fill_next(ShiftedDecoderBlock(cfg, no_encoder_attn), cfg)


class ShiftedModel(BaseMoEModel):
    encoder_class, decoder_class = ShiftedEncoder, ShiftedDecoder


def test_a_system_puts_blocks_of_its_own_into_the_stacks(monkeypatch):
    monkeypatch.setattr("tests.helpers.models.BaseMoEModel", ShiftedModel)
    model = moe_model()
    assert {type(block) for block in model.encoder.layers} == {ShiftedEncoderBlock}
    assert {type(block) for block in model.decoder.layers} == {ShiftedDecoderBlock}
    assert [*expert_layers(model)] == ["encoder.layers.1", "decoder.layers.1"]
    one, other = (model(**{**batch(), "task_ids": torch.full((4,), task)})[0] for task in (0, 1))
    assert not torch.allclose(one, other)
    other.sum().backward()
    for block in (*model.encoder.layers, *model.decoder.layers):
        assert block.shift.weight.grad[1].any() and not block.shift.weight.grad[[0, 2]].any()


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_blocks_that_pass_their_slots_by_are_refused(stack, monkeypatch):
    def build(self, cfg, *others):
        return {"encoder": EncoderBlock, "decoder": DecoderBlock}[stack](cfg, *others)

    monkeypatch.setattr({"encoder": Encoder, "decoder": Decoder}[stack], f"build_{stack}_layer", build)
    with pytest.raises(AssertionError, match="fill_next"):
        moe_model()


@pytest.mark.parametrize("kept", [{"encoder": "1,2"}, {"encoder": "0,2", "decoder": "1"}])
def test_a_pruned_model_has_the_blocks_to_keep(kept):
    """It loads the state of the whole model, and then its own."""
    layers = dict(encoder_layers=3, decoder_layers=3)
    whole = perturb(dense_model(**layers))
    options = {f"{side}_layers_to_keep": blocks for side, blocks in kept.items()}
    pruned, cfg = dense_model(2, **layers, **options), DenseConfig(**SIZES | layers | options)
    pruned.load_state_dict(whole.state_dict(), model_cfg=cfg)
    for stack in (whole.encoder, whole.decoder):
        numbers = map(int, kept.get(stack.side, "0,1,2").split(","))
        stack.layers = nn.ModuleList(stack.layers[number] for number in numbers)
    assert torch.equal(pruned(**batch())[0], whole(**batch())[0])
    again = dense_model(3, **layers, **options)
    again.load_state_dict(pruned.state_dict(), model_cfg=cfg)
    assert torch.equal(pruned(**batch())[0], again(**batch())[0])
    if "decoder" not in kept:  # the other stack can be pruned later
        options["decoder_layers_to_keep"] = "2"
        again = dense_model(3, **layers, **options)
        again.load_state_dict(pruned.state_dict(), model_cfg=DenseConfig(**SIZES | layers | options))
        pruned.decoder.layers = pruned.decoder.layers[2:]
        assert torch.equal(pruned(**batch())[0], again(**batch())[0])


def test_blocks_to_keep_are_numbers_of_equal_blocks():
    with refused("--decoder-layers-to-keep"):
        dense_model(decoder_layers_to_keep="first")
    for model in (moe_model, partial(dense_model, conditional="attention", task_names=",".join(TASKS))):
        with refused("--encoder-layers-to-keep"):
            model(encoder_layers_to_keep="0")
