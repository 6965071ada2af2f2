"""The transformer with expert slots, beside fairseq's own."""

import torch
from fairseq.dataclass.configs import EMAConfig
from fairseq.models.ema.ema import EMA

from fairseq_mtmoe.slots import expert_layers
from fairseq_mtmoe.translation.model.blocks import EncoderBlock
from fairseq_mtmoe.translation.model.stacks import Encoder
from tests.helpers.models import MARIAN, BaseMoEModel, batch, dense_model, moe_model


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


class OwnBlock(EncoderBlock):
    """Its self-attention reads the tasks of the sentences."""

    def attend(self, x, context):
        return super().attend(x, context) + context.task_ids.view(1, -1, 1)


class OwnEncoder(Encoder):
    def build_encoder_layer(self, cfg):
        return self.fill_next(OwnBlock(cfg), cfg)


def test_a_system_puts_blocks_of_its_own_into_the_stacks(monkeypatch):
    monkeypatch.setattr(BaseMoEModel, "encoder_class", OwnEncoder)
    model = moe_model()
    assert [*expert_layers(model)] == ["encoder.layers.1", "decoder.layers.1"]
    one, other = (model(**{**batch(), "task_ids": torch.full((4,), task)})[0] for task in (0, 1))
    assert not torch.allclose(one, other)
