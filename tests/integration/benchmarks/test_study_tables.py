"""Tables of the studies: statistics, what they take from the long table, how they say it, and what pages quote."""

import math
import re
from pathlib import Path

import contrasts
import described
import numpy as np
import pytest
import quotes
import sacrebleu
import sentences
import study_figures
import study_plan
import tables
from scipy import stats
from study_figures import write_results
from study_steps import costs_of, record, shapes
from timing import Ratio

from fairseq_mtmoe.core.errors import UserError

REPOSITORY = Path(__file__).resolve().parents[3]
MADE = {"study": "one", "n": "1", "commit": "abc", "version": "0.1.9", "processor": "P", "date": "2026-01-01"}


def line(row, seed, value):
    figure = {"metric": "bleu", "tier": "all", "task": "", "update": "100"}
    return {**MADE, **figure, "row": row, "seed": str(seed), "value": str(value)}


def of_rows(rows):
    return [line(row, seed, value) for row, values in rows.items() for seed, value in enumerate(values, 1)]


@pytest.mark.parametrize(("mean", "half", "paired", "paper", "named", "other"), [
    (2.0, 1.0, 0.01, 2.5, "agrees", "post hoc"),
    (2.0, 1.0, 0.01, 4.0, "excludes the paper's figure", "excludes the paper's figure"),
    (-2.0, 1.0, 0.01, 2.0, "disagrees", "excludes the paper's figure"),
    (0.1, 0.5, 0.7, 0.4, "no difference shown (wide)", "post hoc"),  # its interval has 0 and the paper's figure
    (2.0, 1.0, 0.06, 2.5, "no difference shown (wide)", "post hoc"),  # of the pooled error alone
    (2.0, 1.0, 0.01, None, "better", "post hoc"),
    (1.0, math.nan, 0.01, 2.0, "too few runs", "too few runs"),
])  # fmt: skip
def test_verdicts_say_what_the_interval_says_of_the_papers_figure(mean, half, paired, paper, named, other):
    found = contrasts.Difference(mean, half, 3, 0.01, paired)
    assert [quotes.verdict(found, "bleu", paper, is_named) for is_named in (True, False)] == [named, other]


def test_rows_of_the_table_have_titles_and_contrasts_have_rows():
    lines, studies = study_plan.read_table(study_figures.RESULTS), described.studies()
    for name, study in studies.items():
        rows = {one["row"] for one in lines if one["study"] == name and ", rate " not in one["row"]}
        assert rows | {row for one in study.contrasts for row in (one.row, one.control)} <= study.rows.keys(), name
        asked = [one for one in study.compared(study.metric) if one.primary]
        pairs = [(frozenset({one.row, one.control}), one.group) for one in asked]
        assert len(pairs) == len(set(pairs)), name  # a family has each comparison once
    assert {one["study"] for one in lines} <= studies.keys()


def test_pages_are_those_of_the_table():
    """After a change of the table or of descriptions: `python benchmarks/tables.py write`."""
    for name, study in described.studies().items():
        of_study = described.lines_of(name, study_plan.read_table(study_figures.RESULTS))
        if of_study.lines:
            path = study_figures.RESULTS.with_name(f"{name}.md")
            assert path.read_text("utf-8") == tables.page(name, study, of_study), name


def test_pages_quote_the_table():
    assert list(quotes.misquoted()) == []


def test_intervals_in_pages_are_quoted():
    """No difference with an interval stands in a page without an entry in quoted.yaml, or in a row not judged."""
    known: dict[str, set[str]] = {}
    for one, figure, _ in quotes.told(quotes.load_pages().quoted):
        known.setdefault(one.page, set()).add(figure)
    difference = re.compile(r"[+-][\d.]+%? \((?:[+-][\d.]+ to [+-][\d.]+|one seed|too few runs)\)")
    docs = REPOSITORY / "docs"
    for path in (REPOSITORY / "README.md", *docs.rglob("*.md")):
        page = path.relative_to(REPOSITORY).as_posix()
        lines = path.read_text("utf-8").splitlines()
        assert set(difference.findall("\n".join(lines))) <= known.get(page, set()), page
        unjudged = [one for one in lines if "| not judged |" in one]
        assert not any(map(difference.search, unjudged)), page


def test_costs_of_shapes_take_the_place_of_older_ones_and_are_shown(tmp_path):
    results = tmp_path / "results.csv"
    write_results(results, [line("dense", 1, 10)])
    for median in (1.5, 1.02):
        size = {"parameters": 5_070_000, "multiplications": 2_980_000}
        record(costs_of("one", "base", size, Ratio(median, 0.98, 1.07)), results, "one")
    found = described.lines_of("one", study_plan.read_table(results))
    study = described.Described(title="One", metric="bleu", rows={"dense": "the dense one", "base": "BASE"})
    assert re.search(r"BASE +\| +5\.07 \| +2\.98 \| 1\.02 \(0\.98 to 1\.07\)", tables.page("one", study, found))
    assert len(found.lines) == 1 + 5


def test_steps_are_compared_with_those_of_the_studys_own_options():
    study = study_plan.load(study_plan.STUDIES / "captions_controls.yaml")
    found = shapes(study, ["512"])
    assert next(iter(found)) == "dense" and "512" not in found["dense"]
    assert "own_layers_all" in found and "dense, 512" in found
    assert not {"dense_hot", "dense_equal_cost_fast"} & set(found)  # which differ in no option of the model


def of_cost(row, updates, step, *scores):
    """Return lines of a row's BLEU after its updates, and of its step beside that of dense."""
    scored = [{**line(row, seed, score), "update": str(updates)} for seed, score in enumerate(scores, 1)]
    timed = {**MADE, "row": row, "seed": "0", "metric": "step / dense", "tier": "all", "task": "", "update": ""}
    return scored + ([{**timed, "value": str(step)}] if step else [])


def test_points_of_the_picture_are_bleu_over_the_cost_of_the_run(tmp_path):
    lines = [*of_cost("dense", 200, 1.25, 30.0, 31.0, 30.5), *of_cost("longer", 400, None, 33.0),
             *of_cost("layer", 200, 1.5, 32.0, 31.6, 31.8)]  # fmt: skip
    study = described.Described(title="One", metric="bleu")
    curves = [quotes.Curve("one", "Captions", "dense", ["dense", "longer", "not_run"]),
              quotes.Curve("one", "Captions", "one layer per language", ["layer"])]  # fmt: skip
    dense, longer, layer = tables.points_of(curves, described.lines_of("one", lines), study)
    assert [dense["cost"], longer["cost"], layer["cost"]] == pytest.approx([1, 2, 1.2])
    assert [dense["mean"], longer["mean"], layer["mean"]] == pytest.approx([30.5, 33, 31.8])
    scores = {"dense": {1: 30.0, 2: 31.0, 3: 30.5}, "layer": {1: 32.0, 2: 31.6, 3: 31.8}}
    half = contrasts.pooled_error(scores).half_width(1 / 3)
    assert [dense["low"], dense["high"]] == pytest.approx([30.5 - half, 30.5 + half])
    assert "low" not in longer  # one seed has no interval
    tables.draw(curves, lines, {"one": study}, tmp_path / "cost.png")
    assert (tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")


def test_a_row_of_the_picture_without_a_timed_step_is_refused():
    lines = described.lines_of("one", of_cost("dense", 200, None, 30.0))
    with pytest.raises(UserError, match="`dense` must have a timed step: run `study_steps"):
        tables.points_of([quotes.Curve("one", "", "", ["dense"])], lines, described.Described(title="One"))


# ---- statistics ----

PAIRED = {"a": {1: 10.0, 2: 12.0, 3: 11.0}, "b": {1: 11.5, 2: 12.5, 3: 13.0}}
THREE = {**PAIRED, "c": {1: 9.0, 2: 12.0, 3: 10.5}}


def test_two_rows_are_the_paired_test():
    found = contrasts.difference(PAIRED["b"], PAIRED["a"], contrasts.pooled_error(PAIRED))
    expected = stats.ttest_rel(list(PAIRED["b"].values()), list(PAIRED["a"].values()))
    interval = expected.confidence_interval(0.95)
    assert found.mean == pytest.approx(1.5 - 1 / 6)
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


def test_error_is_pooled_over_rows_and_seeds():
    """Of three rows and three seeds: what row and seed means leave over, with four degrees of freedom."""
    figures = np.array([[*of_row.values()] for of_row in THREE.values()])
    left = figures - figures.mean(1, keepdims=True) - figures.mean(0) + figures.mean()
    error = contrasts.pooled_error(THREE)
    assert (error.freedom, error.deviation) == (4, pytest.approx(math.sqrt((left**2).sum() / 4)))
    found = contrasts.difference(THREE["b"], THREE["c"], error)
    assert found.half_width == pytest.approx(stats.t.ppf(0.975, 4) * error.deviation * math.sqrt(2 / 3))


def test_rows_of_one_seed_say_nothing_of_chance_and_rows_are_compared_by_seeds_in_common():
    values = {**THREE, "d": {2: 100.0}}
    error = contrasts.pooled_error(values)
    assert error == contrasts.pooled_error(THREE) and contrasts.pooled_error({"d": {2: 1.0}}).freedom == 0
    found = contrasts.difference(values["d"], THREE["a"], error)
    assert (found.mean, found.seeds, found.word(False, 1)) == (88.0, 1, contrasts.ONE_SEED)
    assert contrasts.difference({7: 1.0}, THREE["a"], error) is None


def test_holm_by_hand():
    """Of 0.01, 0.04, 0.03, 0.20 and one without runs: 5·0.01, 4·0.03, then 3·0.04, and 2·0.20."""
    adjusted = contrasts.holm([0.04, 0.01, math.nan, 0.2, 0.03])
    assert adjusted == pytest.approx([0.12, 0.05, math.nan, 0.4, 0.12], nan_ok=True)
    assert contrasts.holm([0.6, 0.7]) == [1.0, 1.0]


def test_primary_contrasts_without_runs_are_of_the_family():
    lines = described.Lines(of_rows({row: list(of.values()) for row, of in PAIRED.items()}))
    asked = [study_plan.Contrast("b", "a", primary=True), study_plan.Contrast("unborn", "a", primary=True)]
    ((_, found),) = described.compare(lines, asked, "bleu")
    alone = contrasts.difference(PAIRED["b"], PAIRED["a"], contrasts.pooled_error(PAIRED))
    assert found.p == pytest.approx(2 * alone.p)


TABLE = """| what | figure | verdict |
|---|---|---|
| a claim | +13.5% (+11.7 to +15.4) | {} |

In prose +13.5% (+11.7 to +15.4), {}, too.
"""


def test_pages_that_say_something_else_are_found(tmp_path, monkeypatch):
    figure = {"study": "captions", "row": "dense_heated", "control": "dense", "group": "high"}
    quoted = [quotes.Quoted("page.md", line, metric="valid perplexity", **figure) for line in ("a claim", "In prose")]
    judged = quotes.told(quoted)
    monkeypatch.setattr(quotes, "told", lambda _: judged)
    for verdict, word, wrong in (
        ("post hoc", "post hoc", 0), ("not judged", "post hoc", 1), ("worse", "post hoc", 1), ("post hoc", "better", 1),
    ):  # fmt: skip
        (tmp_path / "page.md").write_text(TABLE.format(verdict, word))
        assert len(list(quotes.misquoted(tmp_path, quoted))) == wrong
    (tmp_path / "page.md").write_text(TABLE.format("post hoc", "post hoc").replace("+13.5%", "+13.6%"))
    assert len(list(quotes.misquoted(tmp_path, quoted))) == 2


# ---- intervals over seeds and sentences ----


def made_texts(sentences_of_pair, seed):
    draw = np.random.default_rng(seed)
    return [[" ".join(draw.choice(list("abcd"), draw.integers(1, 9))) for _ in range(sentences_of_pair)]
            for _ in range(2)]  # fmt: skip


def test_bleu_of_sums_is_that_of_sacrebleu():
    for seed in range(40):
        hypotheses, references = made_texts(1 + seed % 5, seed)
        counts = sentences.counts_of(hypotheses, references)
        expected = sacrebleu.corpus_bleu(hypotheses, [references]).score
        assert sentences.bleu(sentences.statistics(counts).sum(0)) == pytest.approx(expected)


def slow_bootstrap(row, control, draws):
    """Each draw by itself: texts are repeated as often as they are drawn, and sacrebleu scores them."""
    seeds, generator = sorted(row), np.random.default_rng(1)
    size = len(row[seeds[0]][0][0])
    drawn_seeds = generator.integers(len(seeds), size=(draws, len(seeds)))
    drawn_sentences = generator.integers(size, size=(draws, size))

    def score(pairs, chosen):
        bleus = [sacrebleu.corpus_bleu([texts[0][at] for at in chosen], [[texts[1][at] for at in chosen]]).score
                 for texts in pairs]  # fmt: skip
        return sum(bleus) / len(bleus)

    means = []
    for of_seeds, chosen in zip(drawn_seeds, drawn_sentences, strict=True):
        differences = [score(row[seed], chosen) - score(control[seed], chosen) for seed in seeds]
        center = sum(differences) / len(differences)
        drawn = sum(differences[at] for at in of_seeds) / len(of_seeds)
        means.append(center + math.sqrt(len(seeds) / (len(seeds) - 1)) * (drawn - center))
    return np.quantile(means, [0.025, 0.975])


def test_the_bootstrap_is_that_of_repeated_texts():
    texts = {name: {seed: [made_texts(25, first + 10 * seed + pair) for pair in range(2)] for seed in (1, 2, 4)}
             for name, first in (("row", 100), ("control", 200))}  # fmt: skip
    statistics = {
        name: {seed: np.stack([sentences.statistics(sentences.counts_of(*pair)) for pair in pairs])
               for seed, pairs in of_seeds.items()}
        for name, of_seeds in texts.items()
    }  # fmt: skip
    statistics["control"][9] = statistics["control"][1]  # a seed of one row is left out
    found = contrasts.bootstrap(statistics["row"], statistics["control"], sentences.bleu, draws=60)
    assert found[1:] == pytest.approx(tuple(slow_bootstrap(texts["row"], texts["control"], 60)))
    assert found[1] < found[0] < found[2]


def keep_sentences(folder, row, seed, texts):
    """Keep the counts of a run whose hypotheses and references are these, as `study.py record` does."""
    for side, lines in zip(("hyp", "ref"), texts, strict=True):
        (folder / f"en-de.{side}").write_text("\n".join(lines) + "\n")
    sentences.keep({"": folder}, folder / "sentences" / "one" / f"{row}-{seed}.npz")


@pytest.mark.parametrize(("is_alike", "word"), [(False, "better"), (True, "no difference shown")])
def test_a_difference_that_hangs_on_the_test_sentences_is_not_shown(is_alike, word, tmp_path, monkeypatch):
    """Figures by seed leave no doubt; sentences do if the texts of both rows are alike."""
    monkeypatch.setattr(described, "SENTENCES", tmp_path / "sentences")
    _, references = made_texts(40, 1)
    wrong, _ = made_texts(40, 2)
    for seed in (1, 2, 3):
        keep_sentences(tmp_path, "a", seed, (wrong, references))
        keep_sentences(tmp_path, "b", seed, (wrong if is_alike else references, references))
    lines = described.Lines(of_rows({"a": (10.0, 10.1, 10.2), "b": (20.0, 20.1, 20.3)}))
    ((_, difference),) = described.compare(lines, [study_plan.Contrast("b", "a")], "bleu")
    assert described.word_of(difference, "bleu") == word
