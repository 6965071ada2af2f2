import torch

from fairseq_mtmoe.backbones.bert.heads import HeadSize, TaskHeads, heads_from_text, heads_to_text

SIZES = {"three": HeadSize(3), "value": HeadSize(1), "words": HeadSize(2, num_words=2)}
H = 5


def hidden():
    return torch.randn(6, 7, H, generator=torch.Generator().manual_seed(1)).requires_grad_()


def by_hand(head, features):
    return [
        sum(w * f for w, f in zip(row, features, strict=True)) + b
        for row, b in zip(head.weight.tolist(), head.bias.tolist(), strict=True)
    ]


def test_classes_read_the_first_state():
    heads, states = TaskHeads(H, SIZES), hidden()
    outputs = heads(states, {"three": torch.tensor([[4], [0]])}, {})
    for row, numbers in zip((4, 0), outputs["three"].tolist(), strict=True):
        torch.testing.assert_close(numbers, by_hand(heads["three"], states[row, 0].tolist()), rtol=1e-5, atol=1e-6)


def test_rankings_have_a_number_for_each_candidate():
    heads, states = TaskHeads(H, SIZES), hidden()
    outputs = heads(states, {"value": torch.tensor([[1, 2], [3, 5]])}, {})
    expected = [[by_hand(heads["value"], states[row, 0].tolist())[0] for row in rows] for rows in ((1, 2), (3, 5))]
    torch.testing.assert_close(outputs["value"].tolist(), expected, rtol=1e-5, atol=1e-6)


def test_words_are_means_of_their_tokens():
    heads, states = TaskHeads(H, SIZES), hidden()
    spans = torch.tensor([[[1, 3], [6, 7]]])
    outputs = heads(states, {"words": torch.tensor([[2]])}, {"words": spans})
    features = torch.cat([states[2, 0], (states[2, 1] + states[2, 2]) / 2, states[2, 6]])
    torch.testing.assert_close(
        outputs["words"].tolist(), [by_hand(heads["words"], features.tolist())], rtol=1e-5, atol=1e-6
    )


def test_heads_without_examples_give_nothing_with_a_graph():
    heads, states = TaskHeads(H, SIZES), hidden()
    outputs = heads(states, {"three": torch.tensor([[0]])}, {"three": torch.empty(1, 0, 2, dtype=torch.long)})
    assert {task: tuple(numbers.shape) for task, numbers in outputs.items()} == {
        "three": (1, 3),
        "value": (0, 1),
        "words": (0, 2),
    }
    torch.stack([numbers.sum() for numbers in outputs.values()]).sum().backward()
    assert all(parameter.grad is not None for parameter in heads.parameters())
    assert heads["value"].weight.grad.count_nonzero() == 0


def test_candidates_that_there_are_not_are_never_chosen():
    heads, states = TaskHeads(H, SIZES), hidden()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        numbers = heads.to(dtype)(states.to(dtype), {"value": torch.tensor([[1, 2], [3, -1]])}, {})["value"]
        assert numbers.isfinite().all() and numbers[1].softmax(0).tolist() == [1, 0] and numbers[0].min() > -1e3
    alone = heads.float()(states, {"value": torch.tensor([[3]])}, {})["value"]
    beside_none = heads(states, {"value": torch.tensor([[1, 2], [3, -1]])}, {})["value"][1, 0]
    torch.testing.assert_close(beside_none, alone[0, 0], rtol=1e-5, atol=1e-6)
    heads(states, {"value": torch.tensor([[-1, 2]])}, {})["value"].sum().backward()
    assert states.grad[0].count_nonzero() == 0


def test_only_heads_of_words_say_so_in_checkpoints():
    sizes = {**SIZES, "each": HeadSize(3, per_word=True)}
    assert heads_to_text(sizes).count("per_word") == 1 and heads_from_text(heads_to_text(sizes)) == sizes


def test_a_ranking_has_no_bias():
    assert TaskHeads(H, {"rank": HeadSize(1, has_bias=False)})["rank"].bias is None


def test_heads_start_small():
    weight = TaskHeads(400, {"a": HeadSize(50)})["a"].weight
    assert abs(weight.std().item() - 0.02) < 0.001
    assert TaskHeads(4, {"a": HeadSize(2)})["a"].bias.count_nonzero() == 0


def test_sizes_are_an_option():
    assert heads_from_text(heads_to_text(SIZES)) == SIZES
    assert list(heads_from_text(heads_to_text(SIZES))) == list(SIZES)
