"""`mtmoe similarity`: covariances of what a model's first block reads, over whole sets, in tables and pictures."""

import json
import shutil
from functools import partial

import numpy as np
import pytest
import torch

from fairseq_mtmoe import register
from fairseq_mtmoe.analysis.score_files import scores_of_tasks
from fairseq_mtmoe.analysis.score_tables import write_scores
from fairseq_mtmoe.analysis.similarity import TaskInputs, similarity
from fairseq_mtmoe.cli.similarity import covariance_sums
from fairseq_mtmoe.evaluation.predictor import Predictor
from fairseq_mtmoe.evaluation.stored import Inference
from tests.helpers.benchmark import make_benchmark, make_encoder, save_untrained
from tests.helpers.benchmark_scores import set_of, task_of
from tests.helpers.invoked import mtmoe
from tests.helpers.refused import refused

TASKS = ("cola", "stsb", "copa")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A benchmark, a run of three tasks, and one of each task: encoders differ."""
    register()
    folder = tmp_path_factory.mktemp("similarity")
    make_benchmark(folder, {"dev": 21})
    make_encoder(folder / "encoder.pt")
    for name, tasks in (("together", ",".join(TASKS)), *((task, task) for task in TASKS)):
        (folder / name).mkdir()
        save_untrained(folder, folder / name / "checkpoint_last.pt", "--glue-tasks", tasks, "--arch", "mt_dense")
    for number, task in enumerate(TASKS):
        state = torch.load(folder / task / "checkpoint_last.pt")
        state["model"]["encoder.embed_tokens.weight"] *= 1 + number
        torch.save(state, folder / task / "checkpoint_last.pt")
    return folder


def predictor_of(runs, name):
    return Predictor(str(runs), str(runs / name / "checkpoint_last.pt"), Inference(4, cpu=True))


def sets_of(predictor, task):
    return [one for one in predictor.choose("valid").sets if one.name == task]


def full_inputs(predictor, task):
    """X_i: the embeddings of every sequence by itself, so that nothing is padded, one below the other."""
    encoder, rows = predictor.model.encoder, []
    for examples in predictor.read(sets_of(predictor, task)):
        starts, ends = examples.starts_S[:-1], examples.starts_S[1:]
        for start, end, second in zip(starts, ends, examples.segment_start_S, strict=True):
            tokens, positions = torch.from_numpy(examples.tokens_T[start:end]).long(), torch.arange(end - start)
            x = encoder.embed_tokens(tokens) + encoder.embed_positions(positions)
            rows.append(encoder.layernorm_embedding(x + encoder.embed_segments((positions >= int(second)).long())))
    return torch.cat(rows).detach().double().numpy()


@pytest.mark.parametrize("task", ["cola", "copa"])
def test_the_sums_are_those_of_all_tokens_at_once(runs, task):
    predictor = predictor_of(runs, "together")
    counts = []
    sums = covariance_sums(predictor, sets_of(predictor, task), counts.append)
    x_NH = full_inputs(predictor, task)
    assert sum(counts) == 21 and len(counts) > 2
    assert sums.tokens == len(x_NH)
    np.testing.assert_allclose(sums.sums_HH, x_NH.T @ x_NH, rtol=1e-5, atol=1e-4)


def test_inputs_are_aligned_where_the_model_aligns_them(runs):
    (runs / "conditional").mkdir()
    path = runs / "conditional" / "checkpoint_last.pt"
    save_untrained(runs, path, "--glue-tasks", ",".join(TASKS), "--arch", "ca_mtl")
    predictor = predictor_of(runs, "conditional")
    sums = covariance_sums(predictor, sets_of(predictor, "stsb"), int)
    encoder, embedded_NH = predictor.model.encoder, full_inputs(predictor, "stsb")
    ids_N = torch.full((len(embedded_NH),), TASKS.index("stsb"))
    with torch.no_grad():
        aligned = encoder.alignment(torch.from_numpy(embedded_NH).float()[None], encoder.task_embeddings(), ids_N)
    x_NH = aligned[0].double().numpy()
    assert np.abs(x_NH - embedded_NH).max() > 0.1
    np.testing.assert_allclose(sums.sums_HH, x_NH.T @ x_NH, rtol=1e-4, atol=1e-2)


def test_inputs_are_without_pemts_prompt(runs):
    (runs / "prompt").mkdir()
    path = runs / "prompt" / "checkpoint_last.pt"
    pemt = ("--arch", "pemt_bert", "--pemt-stage", "source", "--criterion", "pemt")
    save_untrained(runs, path, "--glue-tasks", "cola", *pemt)
    predictor = predictor_of(runs, "prompt")
    sums = covariance_sums(predictor, sets_of(predictor, "cola"), int)
    x_NH = full_inputs(predictor, "cola")
    assert sums.tokens == len(x_NH)
    np.testing.assert_allclose(sums.sums_HH, x_NH.T @ x_NH, rtol=1e-5, atol=1e-4)


compare = partial(mtmoe, "similarity", "--cpu")


def test_tables_and_files_have_equation_7(runs, tmp_path):
    compare(runs / "together", *(runs / task for task in TASKS), "--out", tmp_path)
    written = json.loads((tmp_path / "similarity.json").read_text())
    factors = []
    for alone in (False, True):
        x = {task: full_inputs(predictor_of(runs, task if alone else "together"), task) for task in TASKS}
        factors.append({task: TaskInputs(x_NH.T @ x_NH, len(x_NH)).factor_HR for task, x_NH in x.items()})
    together, alone = written["models"]["together"]["tasks"], written["single_task"]["tasks"]
    for found, name, own, others in (
        (together, "mean", 0, 0), (alone, "mean", 1, 1), (together, "mean_with_single_task", 0, 1),
    ):  # fmt: skip
        for task in TASKS:
            wanted = [similarity(factors[own][task], factors[others][one]) for one in TASKS if one != task]
            assert found[task][name] == pytest.approx(np.mean(wanted), rel=1e-4)
    assert all(together[task]["mean"] != pytest.approx(alone[task]["mean"], rel=1e-3) for task in TASKS)
    markdown = (tmp_path / "similarity.md").read_text()
    assert f"{together['cola']['similarities']['copa']:.4f}" in markdown
    assert "a premise or passage once for every candidate (COPA, ReCoRD)" in markdown
    assert {path.name for path in tmp_path.iterdir()} == {"similarity.json", "similarity.md", "similarity.png"}


def test_scores_make_figure_6(runs, tmp_path):
    for name in ("together", *TASKS):
        shutil.copytree(runs / name, tmp_path / name)
    together, alone = {"cola": 55.0, "stsb": 60.0, "copa": 70.0}, {"cola": 50.0, "stsb": 80.0, "copa": 0.0}
    for run, scores in (("together", together), *((task, {task: alone[task]}) for task in TASKS)):
        tasks = {task: task_of(task, set_of(score, examples=21))[task] for task, score in scores.items()}
        settings = {"checkpoint": "checkpoint_last.pt", "seed": 1, "subset": "valid"}
        write_scores(tmp_path / run / "scores", scores_of_tasks(tasks, settings))
    folders = [tmp_path / task for task in TASKS]
    said = compare(tmp_path / "together", *folders, "--tasks", "copa,cola,stsb", "--data", runs)
    written = json.loads((tmp_path / "together" / "similarity" / "similarity.json").read_text())
    tasks = written["models"]["together"]["tasks"]
    assert [tasks[task].get("score_improvement") for task in TASKS] == [pytest.approx(10), pytest.approx(-25), None]
    assert "+10.0" in said and "-25.0" in said
    assert (tmp_path / "together" / "similarity" / "gains.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("names", "options", "wrong"),
    [(["cola"], [], ["RUN"]), (["together", "cola", "cola"], [], []), (["together", "cola"], [], []),
     (["together"], ["--tasks", "cola,rte"], ["--tasks"]), (["nowhere"], [], ["nowhere"])],
)  # fmt: skip
def test_what_cannot_be_compared_is_said_in_a_sentence(runs, tmp_path, names, options, wrong):
    with refused(*wrong):
        compare(*(runs / name for name in names), *options, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
