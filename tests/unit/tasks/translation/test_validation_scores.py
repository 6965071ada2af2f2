"""BLEU and chrF++ in validation: those of `mtmoe evaluate`, in the run log, and to choose the best checkpoint by."""

import shutil

import numpy as np
import pytest

from fairseq_mtmoe.analysis.rows import run_of
from fairseq_mtmoe.analysis.run_log import read
from fairseq_mtmoe.analysis.scores import score_pair
from fairseq_mtmoe.evaluation.translator import Decoding, Translator
from tests.helpers.digits import PAIRS, digit_task, make_digit_corpus
from tests.helpers.processes import run_processes
from tests.helpers.refused import refused
from tests.helpers.training import train_here

SCORED = ("--eval-bleu", "--eval-chrf", "--eval-bleu-args", '{"beam": 3, "max_len_b": 20}', "--num-experts", 4,
          "--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric")  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_digit_corpus(tmp_path_factory.mktemp("digits"), train=600, valid=20)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, train_here(data, folder, *SCORED, "--max-update", 120, "--validate-interval", 9)["validations"]


def test_what_is_logged_is_what_an_evaluation_finds(data, run):
    folder, scores_of_run = run
    translator = Translator(str(data), [str(folder / "checkpoint_last.pt")], Decoding(beam=3, max_len_b=20, cpu=True))
    found = {pair: translator.translate(pair, "valid") for pair in PAIRS}
    scores = {pair: score_pair(pair, of.hypotheses, of.references) for pair, of in found.items()}
    event = [event for event in read(folder) if event["event"] == "valid"][-1]
    for pair, score in scores.items():
        assert [event["pairs"][pair][name] for name in ("bleu", "chrf")] == pytest.approx(
            [score.bleu, score.chrf], abs=0.006
        )
    mean = sum(score.bleu for score in scores.values()) / len(PAIRS)
    assert 3 < mean < 99.9 and scores_of_run[-1] == [event["all"]["bleu"]] == [pytest.approx(mean, abs=0.006)]
    assert event["tiers"]["high"]["bleu"] == event["pairs"]["en-aa"]["bleu"]
    shown = {row.task for row in run_of([event], "run").rows if row.metric == "bleu"}
    assert shown >= {"all", "en-bb"}


def validations(rank, data, folder, *options):
    return train_here(data, folder, *SCORED, "--no-save", *options)["validations"]


def test_two_processes_that_share_the_experts_find_what_one_finds(data, run, tmp_path):
    found = []
    for world_size in (1, 2):
        shutil.copytree(run[0], tmp_path / str(world_size))
        options = ("--max-update", 122, "--update-freq", 2 // world_size, "--no-token-shuffle")
        found += run_processes(validations, world_size, str(data), str(tmp_path / str(world_size)), *options)
    alone, first, second = (np.ravel(one) for one in found)
    assert len(alone) and first.tolist() == second.tolist() == pytest.approx(alone.tolist(), abs=0.006)


def test_a_search_of_the_dense_phase_does_not_serve_experts_in_several_processes(data, tmp_path):
    """Their processes search until the last of them has ended; by themselves they would wait for ever."""
    options = ("--dense-updates", 2, "--max-update", 4, "--validate-interval-updates", 1)
    first, second = run_processes(validations, 2, str(data), str(tmp_path), *options)
    assert len(first) >= 4 and first == second


def test_scores_change_nothing_of_the_training_and_of_the_experts_counts(data, tmp_path):
    norms, layers = [], []
    for name, options in (("plain", ()), ("scored", SCORED[:1] + SCORED[2:4])):
        norms.append(train_here(data, tmp_path / name, *options, "--max-update", 4)["norms"])
        layers.append([event["layers"] for event in read(tmp_path / name) if event["event"] == "experts"])
    assert norms[0] == norms[1] and layers[0] == layers[1] != []


@pytest.mark.parametrize("given", ["{", '{"beam": "4"}', '{"sampling": 1}', '{"beam": 1.5}'])
def test_a_search_that_is_none_is_refused(given, data):
    with refused("--eval-bleu-args: beam" if "1.5" in given else "--eval-bleu-args"):
        digit_task(data, eval_bleu=True, eval_bleu_args=given)
