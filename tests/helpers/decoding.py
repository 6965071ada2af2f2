"""Searches by hand, in which rows change and sentences leave; each of their words is compared with teacher forcing."""

from typing import Any

import torch
from fairseq.sequence_generator import EnsembleModel
from torch import Tensor

from fairseq_mtmoe.translation.model.beam_attention import STATE


def orders(*kept: Any, seed: int = 2) -> list[Tensor]:
    """Orders of three rows a sentence that leave rows with their sentences, of which these stay, in this order."""
    random = torch.Generator().manual_seed(seed)
    rows = [torch.randint(0, 3, (len(each), 3), generator=random) for each in kept]
    return [(torch.tensor([*each])[:, None] * 3 + of_each).flatten() for each, of_each in zip(kept, rows, strict=True)]


ORDERS = orders(*[range(4)] * 4, [0, 2, 3], [2, 0, 1], range(3), [1, 2], [1, 0], [1], [0])


@torch.no_grad()
def decode(
    model: Any, net_input: dict[str, Any], orders: list[Tensor] = ORDERS, padded_step: int | None = None,
    keeps_state: bool = True,
) -> Any:  # fmt: skip
    """Compare every step of a search in four sentences that reorders its rows so with what is read at once.

    Stock fairseq is no reference here: it forgets that a row can change its sentence. Returns the state at the end.
    """
    ensemble, state = EnsembleModel([model]), {}
    ensemble.has_incremental = keeps_state
    net_input = {name: value for name, value in net_input.items() if name != "prev_output_tokens"}
    sentence_R = torch.arange(4).repeat_interleave(3)
    encoder_outs = ensemble.reorder_encoder_out(ensemble.forward_encoder(net_input), sentence_R)
    random = torch.Generator().manual_seed(1)
    words = torch.full((12, 1), 2)
    for step, order in enumerate(orders):
        found, _ = ensemble.forward_decoder(words, encoder_outs, [state])
        sources = {key: value[sentence_R] for key, value in net_input.items()}
        whole, _ = model(**sources, prev_output_tokens=words)
        torch.testing.assert_close(found, whole[:, -1].log_softmax(-1), rtol=1e-5, atol=1e-5)
        sentence_R = sentence_R[order]
        words = torch.cat([words[order], torch.randint(4, 24, (len(order), 1), generator=random)], 1)
        if step == padded_step:
            words[::4, -1] = 1
        ensemble.reorder_incremental_state([state], order)
        encoder_outs = ensemble.reorder_encoder_out(encoder_outs, order)
    found = state.get(STATE)
    assert not keeps_state or (found.beam, found.num_sentences) == (3, len(orders[-1]) // 3)
    return found
