"""Sources' files: what they hold comes back, and what does not fit to a model is refused in a sentence."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.pemt.sources import (
    KIND,
    PROMPT,
    Source,
    SourceSettings,
    expect_same,
    expect_tensors,
    fingerprint,
    load,
)
from tests.helpers.damage import damaged, value_or_sentence
from tests.helpers.refused import refused

WIDTH = 4
DOWN = "encoder.layers.0.mixture.adapters.down"
ADAPTERS = {DOWN: torch.empty(2, WIDTH, device="meta")}
MADE = SourceSettings("ab" * 32, "lora", 2, 16.0, has_prompt=True)


def source():
    tensors = {DOWN: torch.randn(2, WIDTH), PROMPT: torch.randn(5, WIDTH)}
    return Source("mnli", "Given two sentences, say …", MADE, tensors)


@pytest.mark.parametrize(("name", "change"), [
    ("--adapter", dict(adapter="bottleneck")), ("--no-prompt", dict(has_prompt=False)),
    ("x.pt", dict(backbone="cd" * 32)),
])  # fmt: skip
def test_another_run_s_is_refused(name, change):
    with refused(name, "x.pt", first=False):
        expect_same("x.pt", replace(MADE, **change), MADE)


@pytest.mark.parametrize("change", [{DOWN: torch.zeros(3, WIDTH)}, {PROMPT: torch.zeros(5, WIDTH + 1)}])
def test_tensors_that_do_not_fit_are_refused(change):
    with refused(*change, "x.pt", first=False):
        expect_tensors("x.pt", replace(source(), tensors={**source().tensors, **change}), ADAPTERS, WIDTH)


@pytest.mark.parametrize(("part", "change", "name"), [
    (KIND, {"rank": "2"}, "rank"), (KIND, {"task": "../rte"}, "task"), ("model", {PROMPT: torch.tensor(1.0)}, PROMPT),
    (KIND, None, "--pemt-stage source"),
])  # fmt: skip
def test_other_content_is_refused(part, change, name, tmp_path):
    path = str(tmp_path / "x.pt")
    source().save(path)
    content = file_io.load(path)
    content[part] = change and {**content[part], **change}
    file_io.save(content, path)
    for file in (path, str(tmp_path / "missing.pt")):
        with refused(file, name if file == path else "--pemt-stage source", first=False):
            load(file)


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "source.pt"
    source().save(path)
    content = path.read_bytes()

    @settings(max_examples=60, deadline=None, database=None)
    @given(damaged(content))
    def check(data):
        path.write_bytes(data)
        found = value_or_sentence(lambda: load(path))
        assert found is None or data == content

    check()


def test_a_fingerprint_tells_values_names_and_shapes_apart():
    values = {"b": torch.arange(6.0).view(2, 3), "a": torch.zeros(2)}
    wanted = fingerprint(values.items())
    assert len(wanted) == 64 and wanted == fingerprint(reversed(values.items()))
    others = [
        {**values, "b": values["b"].view(3, 2)},
        {**values, "b": values["b"] + torch.eye(2, 3) * 1e-6},
        {"b": values["b"], "c": values["a"]},
        {"b": values["b"]},
    ]
    assert len({wanted, *(fingerprint(other.items()) for other in others)}) == 5
    assert fingerprint({**values, "b": values["b"].t().contiguous().t()}.items()) == wanted
