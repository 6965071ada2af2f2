"""`examples/ca_mtl/similarity.py` prints equation 7 of CA-MTL, computed here with full matrices."""

import json
import runpy

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from fairseq_mtmoe import register
from fairseq_mtmoe.nlu.predictor import Predictor
from fairseq_mtmoe.translation.decode.stored import Inference
from tests.helpers.benchmark import make_benchmark, make_encoder, save_untrained
from tests.helpers.commands import REPOSITORY

TASKS = ("cola", "copa")


def inputs_of(path, data, task):
    """Return the embeddings of every sequence by itself, (N, H), so that nothing is padded."""
    predictor = Predictor(str(data), str(path), Inference(4, cpu=True))
    encoder, rows = predictor.model.encoder, []
    for examples in predictor.read([one for one in predictor.choose("valid").sets if one.name == task]):
        starts, ends = examples.starts_S[:-1], examples.starts_S[1:]
        for start, end, second in zip(starts, ends, examples.segment_start_S, strict=True):
            positions = torch.arange(end - start)
            x = encoder.embed_tokens(torch.from_numpy(examples.tokens_T[start:end]).long())
            x = x + encoder.embed_positions(positions) + encoder.embed_segments((positions >= int(second)).long())
            rows.append(encoder.layernorm_embedding(x))
    return torch.cat(rows).detach().double().numpy()


def best_approximation(x_NH):
    """Return X'X in the least rank that has 99% of the singular values."""
    left, values, right = np.linalg.svd(x_NH.T @ x_NH)
    rank = int(np.searchsorted(np.cumsum(values) / values.sum(), 0.99)) + 1
    return (left[:, :rank] * values[:rank]) @ right[:rank]


def similarity(first, second):
    return np.sqrt(np.trace(first @ second)) / np.sqrt(np.trace(first) * np.trace(second))


def test_similarities_are_those_of_equation_7_in_one_model_and_between_single_ones(tmp_path):
    register()
    make_benchmark(tmp_path, {"dev": 21})
    make_encoder(tmp_path / "encoder.pt")
    approximations = {}
    for name, tasks in (("both", TASKS), ("cola", TASKS[:1]), ("copa", TASKS[1:])):
        path = tmp_path / name / "checkpoint_last.pt"
        path.parent.mkdir()
        save_untrained(tmp_path, path, "--glue-tasks", ",".join(tasks), "--arch", "mt_dense")
        if name == "copa":
            state = torch.load(path)
            state["model"]["encoder.embed_tokens.weight"] *= 2
            torch.save(state, path)
        approximations[name] = [best_approximation(inputs_of(path, tmp_path, task)) for task in tasks]
    script, out = runpy.run_path(str(REPOSITORY / "examples" / "ca_mtl" / "similarity.py")), tmp_path / "out.json"
    single = [f"--single={tmp_path / task}" for task in TASKS]
    arguments = [str(tmp_path / "both"), *single, "--data", str(tmp_path), "--out", str(out)]
    result = CliRunner().invoke(script["main"], arguments)
    assert result.exit_code == 0, result.output
    written = json.loads(out.read_text())["both"]
    together = similarity(*approximations["both"])
    alone = similarity(approximations["cola"][0], approximations["copa"][0])
    assert written["similarities"][0][1] == pytest.approx(together)
    assert written["mean in this model"] == pytest.approx(dict.fromkeys(TASKS, together), rel=1e-4)
    assert written["mean of single-task models"] == pytest.approx(dict.fromkeys(TASKS, alone), rel=1e-4)
    assert together != pytest.approx(alone, rel=1e-3) and f"{together:.4f}" in result.output
