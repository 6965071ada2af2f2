"""Prompts and their correlation, against the paper's equations."""

import pytest
import torch

from fairseq_mtmoe.pemt.base_model import CorrelatedPrompt, Prompt, mean_states

LENGTHS, WIDTH, OWN = (3, 5, 1), 4, 6


def correlated(seed=1):
    generator = torch.Generator().manual_seed(seed)
    prompt = CorrelatedPrompt(OWN, WIDTH, LENGTHS).eval()
    sources = [torch.randn(length, WIDTH, generator=generator) for length in LENGTHS]
    prompt.take_sources_(sources)
    with torch.no_grad():
        prompt.weight.copy_(torch.randn(OWN, WIDTH, generator=generator))
    return prompt, sources


def slowly(queries, sources):
    """H = Q + Σ_k attn(Q, P_k, P_k), one source after the other."""
    return queries + sum((queries @ source.t()).softmax(1) @ source for source in sources)


def test_correlation_is_equations_3_and_4():
    prompt, sources = correlated()
    queries = prompt.weight.detach().clone().requires_grad_()
    wanted, found = slowly(queries, sources), prompt()
    torch.testing.assert_close(found, wanted)
    weights = torch.randn(OWN, WIDTH, generator=torch.Generator().manual_seed(2))
    (wanted * weights).sum().backward()
    (found * weights).sum().backward()
    torch.testing.assert_close(prompt.weight.grad, queries.grad)


def test_dropout_is_of_attention_and_of_training_alone():
    prompt, _ = correlated()
    assert torch.equal(prompt(), prompt())
    prompt.train()
    torch.manual_seed(1)
    several = torch.stack([prompt().detach() for _ in range(4000)])
    assert several.std(0).max() > 0
    torch.testing.assert_close(several.mean(0), prompt.eval()(), atol=0.06, rtol=0)


def test_products_beyond_half_precision_are_finite():
    """As T5's embeddings make them."""
    prompt, sources = correlated()
    with torch.no_grad():
        prompt.weight.mul_(1000)
    prompt.take_sources_([1000 * source for source in sources])
    prompt = prompt.half()
    assert prompt().dtype == torch.float16 and prompt().isfinite().all()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert prompt.float()().isfinite().all()


def test_means_of_states_are_float32_under_autocast():
    states_LBH = 70_000 + torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(1))
    reads_BL = torch.tensor([[True, True, False, False, True], [False, True, False, False, False]])
    with torch.autocast("cpu", dtype=torch.float16):
        found = mean_states(states_LBH, reads_BL)
    torch.testing.assert_close(found, torch.stack([states_LBH[[0, 1, 4], 0].mean(0), states_LBH[1, 1]]))


def test_it_begins_as_its_description_or_at_random_and_alike():
    embeddings = torch.randn(500, 64, generator=torch.Generator().manual_seed(3)) * 5 + 2
    prompt = Prompt(400, 64)
    tokens = [index % 7 for index in range(400)]
    prompt.begin_as_(tokens, embeddings, "description")
    assert torch.equal(prompt(), embeddings[tokens])
    torch.manual_seed(1)
    prompt.begin_as_(tokens, embeddings, "random")
    found = prompt().detach()
    assert (found.mean().item(), found.std().item()) == pytest.approx((2, 5), rel=0.1)
    assert not torch.equal(found[0], found[7])
