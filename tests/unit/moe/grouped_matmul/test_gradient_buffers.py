"""Memory for gradients is handed out again, but never while anybody still refers to it."""

import copy
import pickle

import pytest
import torch

from fairseq_mtmoe.moe import ExpertBank
from fairseq_mtmoe.moe.grouped_matmul.gradient_buffers import MOST, GradientBufferPool, counts_right, trusted_count


def example():
    torch.manual_seed(0)
    return ExpertBank(2, 4, 8), torch.randn(6, 4)


def address(tensor):
    return tensor.untyped_storage().data_ptr()


def test_memory_is_reused_once_it_is_free():
    pool, like = GradientBufferPool(), torch.zeros(1)
    first = pool.new_empty(like, (4, 3))
    used = address(first)
    view = first[1:].t()
    del first
    assert address(pool.new_empty(like, (3, 4))) != used  # the view is still there
    del view
    again = pool.new_empty(like, (3, 4))
    assert address(again) == used
    assert len(pool._storages) == 2  # two tensors were made, and no third
    assert again.shape == (3, 4) and again.is_contiguous()
    del again
    assert all(address(pool.new_empty(like, (size,))) != used for size in (5, 13))  # other sizes
    assert address(pool.new_empty(like.double(), (6,))) == used  # as many bytes, another type
    tensors = [pool.new_empty(like, (4,)) for _ in range(3 * MOST)]
    assert len({address(tensor) for tensor in tensors}) == 3 * MOST and len(pool._storages) == MOST


def test_copies_share_no_memory_and_evaluation_gives_it_back():
    bank, rows = example()
    backward(bank, rows)
    assert bank.gradient_buffers._storages
    for copied in (copy.deepcopy(bank), pickle.loads(pickle.dumps(bank)), bank.eval()):
        assert not copied.gradient_buffers._storages


def backward(bank, rows):
    bank(rows, torch.tensor([3, 6])).square().sum().backward()
    return [parameter.grad for parameter in bank.parameters()]


def test_gradients_of_later_updates_are_right_and_at_the_same_addresses_unless_somebody_keeps_them():
    bank, rows = example()
    plain = copy.deepcopy(bank)
    plain.gradient_buffers.new_empty = torch.Tensor.new_empty
    addresses = []
    for scale in (1.0, 2.0, 3.0):
        for module in (bank, plain):
            module.zero_grad()
        gradients = backward(bank, scale * rows)
        torch.testing.assert_close(gradients, backward(plain, scale * rows))
        addresses.append({address(bank.fc1_weight.grad), address(bank.fc2_weight.grad)})
        del gradients
    assert addresses == [{storage.data_ptr() for storage in bank.gradient_buffers._storages}] * 3
    bank.zero_grad()
    kept = backward(bank, rows)
    before = [gradient.clone() for gradient in kept]
    bank.zero_grad()
    backward(bank, 2 * rows)
    assert all(map(torch.equal, kept, before))


WRONG_COUNTS = {
    "always one": lambda data: 1,
    "views do not count": lambda data: 1 + (torch._C._storage_Use_Count(data) > 2),
    "another signature": lambda: 1,
}


@pytest.mark.skipif(trusted_count() is None, reason="this build of torch does not count a storage's uses")
@pytest.mark.parametrize("name", WRONG_COUNTS)
def test_a_count_that_means_something_else_is_not_trusted_and_nothing_is_kept(name, monkeypatch):
    bank, rows = example()
    expected = backward(copy.deepcopy(bank), rows)
    assert not counts_right(WRONG_COUNTS[name])
    monkeypatch.setattr(torch._C, "_storage_Use_Count", WRONG_COUNTS[name])
    trusted_count.cache_clear()
    try:
        assert all(map(torch.equal, backward(bank, rows), expected))
        assert not bank.gradient_buffers._storages
    finally:
        trusted_count.cache_clear()
