"""The toy's own tests: `tests/unit/test_toy.py` in a project that has the toy."""

import re

import pytest
from click.testing import CliRunner

from fairseq_mtmoe.cli.main import commands
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.slots import expert_layers
from tests.systems.rows.toy import build


def test_its_option_reaches_its_gates():
    """Of a model that is built sparse, and of one that becomes it."""
    for options in ({}, {"dense_updates": 1}):
        model = build(1, gate_sharpness=3.0, **options)
        if model.is_dense:
            model.sparsify()
        assert [layer.gate.sharpness for layer in expert_layers(model).values()] == [3.0, 3.0]
    with pytest.raises(UserError, match="`--gate-sharpness` must be above 0, but is 0 instead"):
        build(1, gate_sharpness=0)


def test_mtmoe_options_lists_it_with_its_option():
    overview, own = (CliRunner().invoke(commands, ["options", *name]).output for name in ((), ("toy_tiny",)))
    assert re.search(r"│ --arch +│ toy, toy_tiny .*--gate-sharpness", overview, re.DOTALL)
    assert re.search(r"│ --gate-sharpness +│ 10\.0 .*│ fairseq_mtmoe │", own)
