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
    """The folder of a run that has learned a little, and what it validated."""
    folder = tmp_path_factory.mktemp("run")
    return folder, train_here(data, folder, *SCORED, "--max-update", 120)["validations"]


def test_what_is_logged_is_what_an_evaluation_finds(data, run):
    folder, validations = run
    translator = Translator(str(data), [str(folder / "checkpoint_last.pt")], Decoding(beam=3, max_len_b=20, cpu=True))
    scores = {}
    for pair in PAIRS:
        found = translator.translate(pair, "valid")
        scores[pair] = score_pair(pair, found.hypotheses, found.references)
    event = [event for event in read(folder) if event["event"] == "valid"][-1]
    assert {pair: event["pairs"][pair]["bleu"] for pair in PAIRS} == {
        pair: pytest.approx(score.bleu, abs=0.006) for pair, score in scores.items()
    }
    assert {pair: event["pairs"][pair]["chrf"] for pair in PAIRS} == {
        pair: pytest.approx(score.chrf, abs=0.006) for pair, score in scores.items()
    }
    mean = sum(score.bleu for score in scores.values()) / len(PAIRS)
    assert 3 < mean < 99.9 and validations[-1] == [event["all"]["bleu"]] == [pytest.approx(mean, abs=0.006)]
    assert event["tiers"]["high"]["bleu"] == event["pairs"]["en-aa"]["bleu"]
    shown = {row.task for row in run_of([event], "run").rows if row.metric == "bleu"}
    assert shown >= {"all", "en-bb"}


def go_on(rank, data, folder, world_size):
    options = (*SCORED, "--max-update", 122, "--update-freq", 2 // world_size, "--no-token-shuffle", "--no-save")
    return train_here(data, folder, *options)["validations"]


def test_two_processes_that_share_the_experts_find_what_one_finds(data, run, tmp_path):
    found = []
    for world_size in (1, 2):
        shutil.copytree(run[0], tmp_path / str(world_size))
        found += run_processes(go_on, world_size, str(data), str(tmp_path / str(world_size)), world_size)
    alone, first, second = (np.ravel(one) for one in found)
    assert len(alone) and first.tolist() == second.tolist() == pytest.approx(alone.tolist(), abs=0.006)


def become_sparse(rank, data, folder):
    options = (*SCORED, "--dense-updates", 2, "--max-update", 4, "--validate-interval-updates", 1, "--no-save")
    return train_here(data, folder, *options)["validations"]


def test_a_search_of_the_dense_phase_does_not_serve_experts_in_several_processes(data, tmp_path):
    """Their processes search until the last of them has ended; by themselves they would wait for ever."""
    first, second = run_processes(become_sparse, 2, str(data), str(tmp_path))
    assert len(first) >= 4 and first == second


def test_scores_change_nothing_of_the_training_and_of_the_experts_counts(data, tmp_path):
    plain = train_here(data, tmp_path / "plain", "--max-update", 4)
    scored = train_here(data, tmp_path / "scored", "--eval-bleu", "--max-update", 4)
    assert plain["norms"] == scored["norms"]
    layers = [
        [event["layers"] for event in read(tmp_path / of) if event["event"] == "experts"] for of in ("plain", "scored")
    ]
    assert layers[0] == layers[1] != []


@pytest.mark.parametrize("given", ["{", '{"beam": "4"}', '{"sampling": 1}', '{"beam": 1.5}'])
def test_a_search_that_is_none_is_refused(given, data):
    with refused("--eval-bleu-args: beam" if "1.5" in given else "--eval-bleu-args"):
        digit_task(data, eval_bleu=True, eval_bleu_args=given)
