"""What is said of a pair is what sacreBLEU says; what is said of a tier is what the definition says, done slowly."""

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

from fairseq_mtmoe.analysis.significance import compared, draw, output_of
from tests.helpers.evaluations import hypotheses, references

SENTENCES, SAMPLES, TRIALS = 30, 45, 60
METRICS = {"BLEU": lambda: BLEU(force=True), "chrF2++": lambda: CHRF(word_order=2)}


def sacrebleu_says(monkeypatch, kind, number, metric, seed, texts, refs):
    """What `sacrebleu --paired-bs` or `--paired-ar` gives for the second system."""
    monkeypatch.setenv("SACREBLEU_SEED", str(seed))
    _, scores = PairedTest([("a", texts[0]), ("b", texts[1])], {"m": metric}, refs, kind, n_samples=number)()
    (results,) = (value for name, value in scores.items() if name != "System")
    return results


def drawn(metric, pair, seed, refs=None):
    texts = hypotheses(pair, SENTENCES, 0.3, 1), hypotheses(pair, SENTENCES, 0.35, 2)
    refs = refs or [references(pair, SENTENCES)]
    first, other = (output_of(metric, text, refs) for text in texts)
    return texts, refs, draw(metric, first, other, seed, SAMPLES, TRIALS)


@pytest.mark.parametrize("name", METRICS)
def test_a_pair_is_what_sacrebleu_says(name, monkeypatch):
    texts, refs, draws = drawn(METRICS[name](), "en-de", 7)
    found = compared([draws])
    first, other = sacrebleu_says(monkeypatch, "bs", SAMPLES, METRICS[name](), 7, texts, refs)
    assert (found.first, found.other, found.p_bootstrap) == (first.score, other.score, other.p_value)
    assert (found.first_error, found.other_error) == (first.ci, other.ci)
    (_, other) = sacrebleu_says(monkeypatch, "ar", TRIALS, METRICS[name](), 7, texts, refs)
    assert found.p_randomisation == other.p_value
    assert 0 < found.p_randomisation < 1 and 0 < found.p_bootstrap < 1


def test_several_references_count_as_sacrebleu_counts_them(monkeypatch):
    second = [None if index % 3 else "der kleine Baum" for index in range(SENTENCES)]
    refs = [references("en-de", SENTENCES), second]
    texts, refs, draws = drawn(METRICS["BLEU"](), "en-de", 5, refs)
    found = compared([draws])
    (first, other) = sacrebleu_says(monkeypatch, "ar", TRIALS, METRICS["BLEU"](), 5, texts, refs)
    assert (found.first, found.p_randomisation) == (first.score, other.p_value)
    assert found.first != compared([drawn(METRICS["BLEU"](), "en-de", 5)[2]]).first


def slow_trials(texts, refs, seed):
    """Scores of both systems in each trial, of sentences that are exchanged and scored anew, (2, TRIALS)."""
    trials = []
    for keep in np.random.default_rng(seed).integers(2, size=(TRIALS, SENTENCES), dtype=bool):
        exchanged = [[texts[side ^ (not kept)][i] for i, kept in enumerate(keep)] for side in (0, 1)]
        trials.append([BLEU(force=True).corpus_score(text, refs).score for text in exchanged])
    return np.array(trials).T


def test_a_tier_is_the_mean_over_pairs_of_the_same_draws():
    """`figures.json` has the intervals of tiers."""
    draws, trials = [], []
    for pair, seed in (("en-de", 3), ("en-fr", 4)):
        texts, refs, of_pair = drawn(BLEU(force=True), pair, seed)
        draws.append(of_pair)
        trials.append(slow_trials(texts, refs, seed))
    found, apart = compared(draws), np.diff(np.mean(trials, axis=0), axis=0)
    assert found.p_randomisation == ((np.abs(apart) > abs(found.difference)).sum() + 1) / (TRIALS + 1)
