"""What a report shows of test sets: scores with confidence, differences with significance, some translations."""

import itertools
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from fairseq_mtmoe.analysis.differences import SEED, Sampling, find_differences
from fairseq_mtmoe.analysis.eval_folders import outputs_of, read_evaluations
from fairseq_mtmoe.analysis.report import gathering
from fairseq_mtmoe.analysis.report.gathering import Gatherer
from fairseq_mtmoe.analysis.score_files import scores_of_tasks
from fairseq_mtmoe.analysis.score_tables import write_scores
from fairseq_mtmoe.analysis.significance import SAMPLES, compared, draw, half_interval, resampled
from tests.helpers.benchmark_scores import set_of, task_of
from tests.helpers.evaluations import TIERS, references, write_evaluation
from tests.helpers.refused import refused
from tests.helpers.run_logs import events_of_a_run, write_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    for name, wrong, seed in (("a", 0.3, 1), ("b", 0.5, 2)):
        write_run(folder / name, events_of_a_run(pairs=1, validations=1, train_events=1))
        write_evaluation(folder / name / "scores", wrong, seed, sentences=20)
    return [folder / "a", folder / "b"]


@pytest.fixture(scope="module")
def facts(runs: list[Path]) -> Any:
    return Gatherer(runs).gather()


def rows_of(scores):
    return {(row.group, row.task, row.metric): row for row in scores.rows}


def test_scores_of_pairs_tiers_and_all_have_confidence(runs, facts):
    written = json.loads((runs[0] / "scores" / "scores.json").read_text())
    rows = rows_of(facts.runs[0].scores)
    sets = ["en-gu", "en-de", "en-fr", "low", "high", "all"]
    assert list(dict.fromkeys(task for _, task, _ in rows)) == sets
    assert [rows[group, task, "BLEU"].n for group, task in (("tier", "low"), ("tier", "high"))] == [1, 2]
    for pair, (metric, key) in itertools.product(sets[:3], (("BLEU", "bleu"), ("chrF++", "chrf"))):
        row, of_all = rows["pair", pair, metric], rows["all", "all", metric]
        assert row.value[0] == written["pairs"][pair][key] and 0.5 < row.stderr < 20
        assert of_all.value[0] == pytest.approx(written["averages"]["all"][key]) and of_all.stderr < row.stderr


def test_confidence_is_that_of_sacrebleus_paired_bootstrap(runs):
    """sacreBLEU draws for two systems; the first one's interval does not depend on the other."""
    evaluations = read_evaluations([run / "scores" for run in runs])
    scorer, outputs = outputs_of("BLEU", "en-de", evaluations)
    seed = Sampling(SEED, SAMPLES, 10).seed_of("en-de")
    paired = compared([draw(scorer, *outputs, seed, SAMPLES, 10)])
    for output, error in zip(outputs, (paired.first_error, paired.other_error), strict=True):
        assert half_interval(resampled(scorer, output, seed)) == pytest.approx(error, rel=1e-4)


def test_a_run_is_compared_with_the_first_as_by_mtmoe_compare(runs, facts):
    evaluations = read_evaluations([run / "scores" for run in runs])
    expected = find_differences(evaluations, Sampling(SEED, SAMPLES, gathering.SAMPLING.trials))
    assert [one.metric for one in expected] == ["BLEU", "chrF++"] and facts.notes == []
    for (first, second, found), same in zip(facts.comparisons, expected, strict=True):
        assert (first, second, found.metric, found.pairs) == ("a", "b", same.metric, same.pairs)
        assert found.groups == same.groups


def test_samples_are_spread_over_lengths_and_the_same_of_every_system(facts):
    samples, others = ([one for one in run.scores.samples if one.pair == "en-de"] for run in facts.runs)
    assert [one.line for one in samples] == [one.line for one in others] and len({one.line for one in samples}) == 5
    texts = references("en-de", 20)
    assert [len(one.references[0]) for one in samples] == sorted(map(len, texts))[2::4]
    assert all(one.references == (texts[one.line - 1],) and one.source is None for one in samples)
    assert any("Sources of translations are not shown of en-gu" in note for note in facts.runs[0].notes)


def test_sources_come_from_the_data_that_was_translated(runs, tmp_path):
    run = shutil.copytree(runs[0], tmp_path / "run")
    scores = run / "scores" / "scores.json"
    scores.write_text(scores.read_text().replace('"subset"', f'"data": "{tmp_path}/data", "subset"'))
    (tmp_path / "data" / "raw").mkdir(parents=True)
    for pair, sentences in (("en-de", 20), ("en-gu", 19), ("en-fr", 20)):
        lines = [f"{pair} source {line}" + " and more" * 100 for line in range(1, sentences + 1)]
        (tmp_path / "data" / "raw" / f"test.{pair}.en").write_text("\n".join(lines) + "\n")
    found = Gatherer([run]).gather().runs[0]
    sources = {pair: {one.line: one.source for one in found.scores.samples if one.pair == pair} for pair in TIERS}
    for line, source in sources["en-de"].items():
        assert source.startswith(f"en-de source {line} and more") and len(source) == 600 and source.endswith("…")
    assert {*sources["en-gu"].values()} == {None}  # there is another test set by now
    assert sum("not shown of en-gu: " in note for note in found.notes) == 1


def test_other_test_sets_are_not_compared_and_a_note_says_why(runs, tmp_path):
    other = write_run(tmp_path / "c", events_of_a_run(pairs=1, validations=1))
    write_evaluation(other / "scores", 0.3, pairs={"en-de": "high"}, sentences=20)
    facts = Gatherer([runs[0], other]).gather()
    assert facts.comparisons == [] and "has no en-gu" in facts.notes[0]
    assert facts.runs[1].scores.rows


def test_texts_that_do_not_give_the_scores_are_refused(runs, tmp_path):
    run = shutil.copytree(runs[0], tmp_path / "run")
    text = run / "scores" / "en-de.hyp"
    text.write_text("\n".join([*text.read_text().splitlines()[:-1], "nothing"]) + "\n")
    with refused("scores"):
        Gatherer([run]).gather()
    for odd in ('{"pairs": {"en-de": 1}}', "[1]"):
        (run / "scores" / "scores.json").write_text(odd)
        with refused("scores.json"):
            Gatherer([run]).gather()


def test_a_benchmarks_scores_have_confidence(tmp_path):
    run = write_run(tmp_path / "run", events_of_a_run(pairs=1, validations=1))
    rte = set_of(70.0, 2.0, also={"f1": (60.0, 1.0)}, majority={"accuracy": 52.7}, constant="yes")
    tasks = {**task_of("rte", rte), **task_of("cola", set_of(50.0, None))}
    write_scores(run / "scores", scores_of_tasks(tasks, {"checkpoint": "x.pt", "subset": "valid", "seed": 1}))
    scores = Gatherer([run]).gather().runs[0].scores
    rows = rows_of(scores)
    assert rows["task", "RTE (accuracy)", "score"].value[0] == 70
    assert rows["task", "RTE (accuracy)", "score"].stderr == pytest.approx(3.92)
    assert rows["task", "RTE (accuracy)", "majority"].value[0] == 52.7
    assert rows["task", "RTE (f1)", "score"].value[0] == 60 and ("task", "RTE (f1)", "majority") not in rows
    assert math.isnan(rows["task", "CoLA (matthews)", "score"].stderr)
    averages = {task: row.value[0] for (group, task, _), row in rows.items() if group == "group"}
    assert averages == {"small": 60, "all": 60, "all (CA-MTL)": 55}


def test_what_takes_long_is_done_once_while_files_stay_the_same(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(gathering, "SAMPLING", Sampling(SEED, 10, 10))
    copies = [shutil.copytree(run, tmp_path / run.name) for run in runs]
    told: list[str] = []
    gatherer = Gatherer(copies, advance=told.append)
    first = gatherer.gather()
    assert len(told) == 3 * 3  # both runs' intervals, and their differences
    stamp = gatherer.stamp()
    assert gatherer.gather().comparisons == first.comparisons and len(told) == 9
    with open(copies[0] / "mtmoe.jsonl", "a") as log:
        log.write('{"event": "sparsified", "update": 2000, "num_experts": 4}\n')
    assert gatherer.stamp() != stamp and gatherer.gather().runs[0].sparsified[-1] == (2000, 4)
    assert len(told) == 9
    shutil.rmtree(copies[1] / "scores")
    write_evaluation(copies[1] / "scores", 0.1, sentences=20)
    again = gatherer.gather()
    assert len(told) == 15 and again.comparisons[0][2].groups != first.comparisons[0][2].groups
