"""Annotations: values that fit, and the path, the rule and the value of the first that does not."""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Required

import pytest
import torch
from torch import Tensor

from fairseq_mtmoe.core.typed import OR_LIST, Name, Rule, Text, between, fault, mapping, mapping_of, structured
from tests.helpers.refused import refused

Even = Annotated[int, Rule("an even number", lambda value: value % 2 == 0)]
Inner: Any = mapping({"size": Required[int], "weights": Tensor})
Outer: Any = mapping({
    "inner": Inner | None,
    "by_name": dict[Name, Inner],
    "share": float | Tensor,
    "even": Even,
    "count": Annotated[int, between(0, 10)],
    "pair": Annotated[tuple[int, int], OR_LIST],
    "text": Text,
})  # fmt: skip


class Colour(Enum):
    red = "r"


@dataclass(frozen=True)
class Shape:
    name: str
    sides: list[int]
    colour: Colour = Colour.red
    ends: tuple[int, ...] = ()


def test_values_that_fit():
    for value in (
        {}, {"inner": None, "unknown": object()},
        {"inner": {"size": 3, "weights": torch.ones(2)}, "share": 1, "even": 4, "count": 10},
        {"by_name": {"a": {"size": 1}}, "share": torch.ones(1), "pair": [1, 2], "text": "x"},
    ):  # fmt: skip
        assert fault(value, Outer) is None


@pytest.mark.parametrize(("value", "path", "rule", "shown"), [
    ([], "file", "a valid dictionary", "[]"),
    ({"inner": {}}, "file.inner.size", "a value", "none"),
    ({"inner": {"size": True}}, "file.inner.size", "a valid integer", "True"),
    ({"by_name": {"": {"size": 1}}}, "file.by_name", "a name", "''"),
    ({"by_name": {"a": {"size": 1, "weights": 2}}}, "file.by_name.a.weights", "an instance of Tensor", "2"),
    ({"share": "much"}, "file.share", "a valid number or an instance of Tensor", "'much'"),
    ({"even": 3}, "file.even", "an even number", "3"),
    ({"pair": [1, "2"]}, "file.pair.1", "a valid integer", "'2'"),
    ({"text": "\ud800"}, "file.text", "text", "'\\ud800'"),
    ({"count": 10**50}, "file.count", "a number from 0 to 10", "a number of more than 40 digits"),
])  # fmt: skip
def test_the_first_fault(value, path, rule, shown):
    wrong = fault(value, Outer, "file")
    assert (wrong.path, wrong.rule, wrong.value) == (path, rule, shown)


NESTED: list = []
for _ in range(300):
    NESTED = [NESTED]


def test_a_dataclass_of_plain_values():
    value = {"name": "triangle", "sides": [3, 4, 5], "ends": [1, 2]}
    assert structured(Shape, value, "recipe.yaml") == Shape("triangle", [3, 4, 5], Colour.red, (1, 2))
    assert fault({"sides": []}, mapping_of(Shape)).path == "name"
    for wrong, name in (
        ({"name": "triangle", "sides": ["3"]}, "recipe.yaml: sides.0"), ({"sides": []}, "recipe.yaml: name"),
        ({"name": "triangle", "sides": [], "colour": "blue"}, "recipe.yaml: colour"), ([], "recipe.yaml"),
        ({"name": "\ud800", "sides": []}, "recipe.yaml"), ({"name": "triangle", "sides": NESTED}, "recipe.yaml"),
    ):  # fmt: skip
        with refused(name):
            structured(Shape, wrong, "recipe.yaml")
