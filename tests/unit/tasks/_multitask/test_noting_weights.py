"""The weights that gates give sources, as the run log has them."""

import pytest
import torch

from fairseq_mtmoe.tasks._multitask.run_log import start_noting, stop_noting
from tests.helpers.borrowing import target_model
from tests.helpers.models import batch


def test_they_are_means_over_sentences_of_what_was_passed_since(tmp_path):
    model = target_model(tmp_path, gate_input="hidden")
    inputs = batch(task_ids=False)
    model(**inputs)
    start_noting(model)
    first, second = ({name: value[part] for name, value in inputs.items()} for part in (slice(3), slice(3, 4)))
    for part in (first, second):
        model(**part)
    found = stop_noting(model)
    model(**inputs)
    assert list(found) == ["encoder.layers.0", "encoder.layers.1", "decoder.layers.0", "decoder.layers.1"]
    context = model.encoder(**{name: inputs[name] for name in ("src_tokens", "src_lengths")})["mixture"][0]
    weights = dict(zip(found, context.weights.values(), strict=False))
    assert weights["encoder.layers.1"].shape == (4, 2)
    for path, each in weights.items():
        assert found[path] == pytest.approx(each.mean(0).tolist(), abs=1e-5)
        assert abs(found[path][0] - 0.5) > 1e-3
    start_noting(model)
    assert all(torch.tensor(row).isnan().all() for row in stop_noting(model).values())
