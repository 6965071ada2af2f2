"""A pair has sacreBLEU's figures; a tier has those of the definition, computed slowly."""

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

from fairseq_mtmoe.report.significance import comparison_of, draw, output_of
from tests.helpers.evaluations import hypotheses, references

SENTENCES, SAMPLES, TRIALS = 30, 45, 60
METRICS = {"BLEU": lambda: BLEU(force=True), "chrF2++": lambda: CHRF(word_order=2)}


def sacrebleu_says(monkeypatch, kind, number, metric, seed, texts, refs):
    """What `sacrebleu --paired-bs` or `--paired-ar` gives for the second system."""
    monkeypatch.setenv("SACREBLEU_SEED", str(seed))
    _, scores = PairedTest([("a", texts[0]), ("b", texts[1])], {"m": metric}, refs, kind, n_samples=number)()
    (results,) = (value for name, value in scores.items() if name != "System")
    return results


def drawn(metric, pair, seed, further=()):
    texts = hypotheses(pair, SENTENCES, 0.3, 1), hypotheses(pair, SENTENCES, 0.35, 2)
    refs = [references(pair, SENTENCES), *further]
    first, other = (output_of(metric, text, refs) for text in texts)
    return texts, refs, draw(metric, first, other, seed, SAMPLES, TRIALS)


@pytest.mark.parametrize(("name", "further"), [
    ("BLEU", []), ("BLEU", [[None if index % 3 else "der kleine Baum" for index in range(SENTENCES)]]), ("chrF2++", []),
], ids=["BLEU", "several references", "chrF2++"])  # fmt: skip
def test_a_pair_has_sacrebleus_figures(name, further, monkeypatch):
    texts, refs, draws = drawn(METRICS[name](), "en-de", 7, further)
    found = comparison_of([draws])
    first, other = sacrebleu_says(monkeypatch, "bs", SAMPLES, METRICS[name](), 7, texts, refs)
    assert (found.first, found.other, found.p_bootstrap) == (first.score, other.score, other.p_value)
    assert (found.first_error, found.other_error) == (first.ci, other.ci)
    (_, other) = sacrebleu_says(monkeypatch, "ar", TRIALS, METRICS[name](), 7, texts, refs)
    assert found.p_randomisation == other.p_value
    assert 0 < found.p_randomisation < 1 and 0 < found.p_bootstrap < 1


def slow_scores(texts, refs, seed):
    """Scores of both systems in each resample and each trial, of sentences that are put together and scored anew."""

    def scored(texts, lines):
        references = [[of[i] for i in lines] for of in refs]
        return [BLEU(force=True).corpus_score([text[i] for i in lines], references).score for text in texts]

    draws = np.random.default_rng(seed).choice(SENTENCES, size=(SAMPLES, SENTENCES), replace=True)
    resamples, trials = [scored(texts, chosen) for chosen in draws], []
    for keep in np.random.default_rng(seed).integers(2, size=(TRIALS, SENTENCES), dtype=bool):
        exchanged = [[texts[side ^ (not kept)][i] for i, kept in enumerate(keep)] for side in (0, 1)]
        trials.append(scored(exchanged, range(SENTENCES)))
    return np.array(resamples).T, np.array(trials).T


def test_a_tier_is_the_mean_over_pairs_of_the_same_draws():
    draws, slow = [], []
    for pair, seed in (("en-lv", 3), ("en-fr", 4)):
        texts, refs, of_pair = drawn(BLEU(force=True), pair, seed)
        draws.append(of_pair)
        slow.append(slow_scores(texts, refs, seed))
    (resamples, trials), found = (np.mean(scores, axis=0) for scores in zip(*slow, strict=True)), comparison_of(draws)
    differences = np.sort(resamples[1] - resamples[0])
    assert found.interval == pytest.approx((differences[1], differences[-2]), abs=1e-4)  # 45 // 40 left out at each end
    size = np.abs(differences)
    assert found.p_bootstrap == ((size - size.mean() > abs(found.difference)).sum() + 1) / (SAMPLES + 1)
    apart = np.abs(trials[0] - trials[1])
    assert found.p_randomisation == ((apart > abs(found.difference)).sum() + 1) / (TRIALS + 1)
    assert 0.1 < found.p_bootstrap < 0.9 and 0.1 < found.p_randomisation < 0.9  # at their least they would show little
