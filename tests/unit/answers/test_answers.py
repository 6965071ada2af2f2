"""Kinds of answers: what the rows of the table make of them."""

import pytest
import torch

from fairseq_mtmoe.answers import Ranking, Regression, answer_of
from fairseq_mtmoe.backbones.bert.heads import heads_to_text
from fairseq_mtmoe.data.nlu.table import Kind, load_tables

OLD_HEADS = (  # in checkpoints of 0.1.5
    '{"mnli": {"num_outputs": 3, "num_words": 0, "has_bias": true}, '
    '"stsb": {"num_outputs": 1, "num_words": 0, "has_bias": true}, '
    '"copa": {"num_outputs": 1, "num_words": 0, "has_bias": false}, '
    '"wic": {"num_outputs": 2, "num_words": 2, "has_bias": true}}'
)


def test_every_kind_has_a_class():
    rows = load_tables()
    assert {row.kind for row in rows.values()} == set(Kind)
    assert all(row.metric in answer_of(row).metrics for row in rows.values())


def test_heads_are_those_of_old_checkpoints():
    rows = load_tables()
    heads = {name: answer_of(rows[name]).head for name in ("mnli", "stsb", "copa", "wic")}
    assert heads_to_text(heads) == OLD_HEADS


def test_a_regression_stays_within_its_bounds():
    numbers = torch.tensor([[-1.0], [2.5], [7.0]])
    assert answer_of(load_tables()["stsb"]).predictions(numbers).tolist() == [0.0, 2.5, 5.0]
    assert Regression().predictions(numbers).tolist() == [-1.0, 2.5, 7.0]


@pytest.mark.parametrize("candidates", [2, 5])
def test_a_guess_among_any_number_costs_1(candidates):
    loss = Ranking().loss(torch.zeros(3, candidates), torch.tensor([0.0, 1.0, 1.0]))
    assert loss.item() == pytest.approx(3)
