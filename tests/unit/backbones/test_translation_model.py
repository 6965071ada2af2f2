"""The transformer with expert slots, beside fairseq's own."""

import torch
from fairseq.dataclass.configs import EMAConfig
from fairseq.models.ema.ema import EMA

from tests.helpers.models import batch, moe_model


def test_a_moving_average_keeps_the_last_norms():
    """fairseq's average has no `version` in its state, and a state without one loses these norms in fairseq."""
    model = moe_model(encoder_normalize_before=True, decoder_normalize_before=True)
    average = EMA(model, EMAConfig(store_ema=True, ema_decay=0.0))  # that is, the model itself
    average.step(model)
    kept = average.get_model()
    assert set(kept.state_dict()) == set(model.state_dict())
    assert torch.equal(kept(**batch())[0], model(**batch())[0])
