"""Copies of which a part is drawn anew: which part, from which distribution, and the same in every process."""

import pytest
import torch
from torch import nn

from fairseq_mtmoe.moe import ExpertBank
from fairseq_mtmoe.moe.experts import reinitialize_
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement

N, H, F = 4, 8, 21


def layer(hidden_size=H, inner_size=F):
    torch.manual_seed(0)
    return nn.Linear(hidden_size, inner_size), nn.Linear(inner_size, hidden_size)


def copies(ratio, dense=None, placement=None, seed=3):
    fc1, fc2 = dense or layer()
    torch.manual_seed(seed)
    bank = ExpertBank(N, fc1.in_features, fc1.out_features, placement=placement, draws=False)
    bank.copy_dense_(fc1.weight, fc1.bias, fc2.weight, fc2.bias)
    reinitialize_(bank, ratio)
    return bank


@pytest.mark.parametrize(("ratio", "size"), [(0.5, 10), (1.0, 21)])
def test_whole_units_are_drawn_others_in_each_copy_and_the_rest_stays(ratio, size):
    bank, (fc1, fc2) = copies(ratio), layer()
    assert bank.reinitialized.sum(1).tolist() == [size] * N
    if size < F:
        assert len({tuple(units.tolist()) for units in bank.reinitialized}) > 1
    for expert, drawn in enumerate(bank.reinitialized):
        old = (fc1.weight, fc1.bias.unsqueeze(1), fc2.weight.t())
        new = (bank.fc1_weight[expert], bank.fc1_bias[expert].unsqueeze(1), bank.fc2_weight[expert].t())
        for before, after in zip(old, new, strict=True):
            assert torch.equal(after[~drawn], before[~drawn])
            assert (after[drawn] != before[drawn]).all()
        assert torch.equal(bank.fc2_bias[expert], fc2.bias)
    assert not torch.equal(bank.fc1_weight[0], bank.fc1_weight[1])
    for name, parameter in bank.named_parameters():
        part = bank.reinitialized_part(name)
        assert (part is None) == (name == "fc2_bias")
        assert part is None or part.expand_as(parameter).sum() == N * size * parameter[0].numel() // F


def test_a_share_of_no_unit_draws_nothing():
    bank, (fc1, _) = copies(0.04), layer()
    assert bank.reinitialized is None and bank.reinitialized_part("fc1_weight") is None
    assert all(torch.equal(weight, fc1.weight) for weight in bank.fc1_weight)


def test_what_is_drawn_has_mean_and_deviation_of_what_it_replaces():
    fc1, fc2 = layer(64, 256)
    with torch.no_grad():
        fc1.weight.normal_(2.0, 0.5)
        fc1.bias.normal_(-3.0, 1.0)
        fc2.weight.normal_(0.1, 0.02)
    bank = copies(0.5, (fc1, fc2))
    for expert, drawn in enumerate(bank.reinitialized):
        pairs = (fc1.weight, bank.fc1_weight), (fc1.bias, bank.fc1_bias), (fc2.weight.t(), bank.fc2_weight.mT)
        for dense, part in pairs:
            old, new = dense[drawn], part[expert][drawn]
            assert abs(new.mean() - old.mean()) < 5 * old.std() / new.numel() ** 0.5
            assert new.std().item() == pytest.approx(old.std().item(), rel=5 / (2 * new.numel()) ** 0.5)


def test_an_expert_is_the_same_in_whichever_process_it_is():
    first, count = 1, 2
    whole, part = copies(0.5), copies(0.5, placement=ExpertPlacement(N, first, count))
    for name, parameter in part.named_parameters():
        assert torch.equal(parameter, whole.get_parameter(name)[first : first + count])
    assert torch.equal(part.reinitialized, whole.reinitialized[first : first + count])


def test_the_seed_decides_what_is_drawn_and_the_ratio_not_what_is_drawn_next():
    bank = copies(0.5)
    after = torch.rand(3)
    assert not torch.equal(copies(0.5, seed=4).reinitialized, bank.reinitialized)
    copies(0)
    assert torch.equal(torch.rand(3), after)
