"""docs/reproducing.md and results/README.md: what the results come to, and how rows of papers' tables are judged."""

import json
import re
import shlex
import sys

import pytest

from fairseq_mtmoe.analysis.published import published_rows
from tests.helpers.commands import REPOSITORY
from tests.helpers.tables import unpadded

SCRIPTS = ("reproducing", "result_list", "verdicts", "published_tables", "studies", "report_glue", "compare_ca_mtl")
AGAIN = "python benchmarks/reproducing.py --write"


@pytest.fixture(scope="module")
def rendering():
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    try:
        import reproducing

        yield reproducing
    finally:
        sys.path.remove(str(REPOSITORY / "benchmarks"))
        for name in SCRIPTS:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def papers(rendering):
    return {paper["short"].split(",")[0]: paper for paper in rendering.papers()}


def table_of(paper, name):
    return next(table for table in paper["tables"] if table.name == name)


# ---- the documents ----


def test_documents_are_what_the_results_come_to(rendering):
    parts = rendering.parts(rendering.results(), rendering.Versions.stored())
    for path, parts_of_it in parts.items():
        text = path.read_text(encoding="utf-8")
        assert rendering.filled(text, parts_of_it) == text, AGAIN


def test_versions_of_all_commits_are_known(rendering):
    versions = rendering.Versions.stored().known
    missing = {commit for one in rendering.results() for commit in one.commits} - versions.keys()
    assert not missing, AGAIN
    assert versions["10b1795"] == "0.1.0"


def test_links_and_scripts_are_there():
    text = (REPOSITORY / "docs" / "reproducing.md").read_text(encoding="utf-8")
    links = set(re.findall(r"\]\(([^)#]+)", text))
    scripts = set(re.findall(r"\b(?:examples|configs|benchmarks|tests)/[\w/.]+\w", text))
    assert len(links) > 8 and len(scripts) > 15
    assert all((REPOSITORY / "docs" / link).exists() for link in links)
    assert all((REPOSITORY / script).exists() for script in scripts)


def test_texts_outside_the_markers_stay(rendering):
    text = "before\n<!-- a begin -->\nold\n<!-- a end -->\nbetween\n<!-- b begin -->\n<!-- b end -->\nafter\n"
    assert rendering.filled(text, {"a": "new", "b": "more"}) == (
        "before\n<!-- a begin -->\nnew\n<!-- a end -->\nbetween\n<!-- b begin -->\nmore\n<!-- b end -->\nafter\n"
    )


# ---- the papers' figures ----


def test_averages_are_those_of_the_published_tasks(papers):
    table = table_of(papers["MT-TaG"], "Table 1")
    rows = {row.system: row for row in published_rows() if row.source.endswith("Multi-Task Learners, table 1")}
    assert rows.keys() < {row.name for row in table.rows}
    for row in table.rows[:4]:
        figures = rows[row.name].figures
        assert row.paper["All"] == pytest.approx(sum(figures.values()) / 8, abs=0.051)
        assert row.paper["RTE"] == figures["rte"]
        small = sum(figures[task] for task in ("rte", "mrpc", "stsb", "cola")) / 4
        assert row.paper["Small"] == pytest.approx(small, abs=0.051)


def test_figures_are_those_that_studies_quote(rendering, papers):
    from compare_ca_mtl import PAPER as ABLATION
    from compare_pemt import PAPER as PEMT

    for row in table_of(papers["CA-MTL"], "Table 1").rows:
        assert tuple(row.paper.values()) == ABLATION[row.ours]
    quoted = {
        row.ours: row.paper["All"]
        for name in ("Table 1, figure 1", "Table 4", "Table 6")
        for row in table_of(papers["PEMT"], name).rows
        if row.paper and row.name != "4 sources"
    }
    assert {name: value for name, value in quoted.items() if name in PEMT} == PEMT


def test_every_table_has_a_study_or_a_reason_that_there_is_none(papers):
    tables = [table for paper in papers.values() for table in paper["tables"]]
    assert len(tables) > 25
    for table in tables:
        assert table.studies or table.why, table.name
        if table.rows:
            assert table.base in table.rows
            assert {column.like for column in table.columns} - {""} <= {column.title for column in table.columns}


# ---- what came out ----

COMMAND = shlex.split(
    "fairseq-train DATA --seed 1 --save-dir R --encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 16 "
    "--decoder-embed-dim 16 --encoder-ffn-embed-dim 24 --decoder-ffn-embed-dim 24"
)
BASE = [*COMMAND, "--arch", "base_moe", "--num-experts", "4", "--sampling-temperature", "1.5"]


def run_of(system, seed, perplexity, bleu, command=BASE, minutes=1.0):
    return {
        "system": system, "seed": seed, "updates": [100, 200], "minutes": [1.0, 2.0], "commit": "10b1795",
        "perplexity": {"low": [90.0, perplexity + 1], "all": [80.0, perplexity]}, "command": command,
        "minutes_to_base_best": minutes,
        "scores": {"averages": {"all": {"bleu": bleu}}, "pairs": {"en-de": {"bleu_signature": "sig"}}},
    }  # fmt: skip


def test_runs_that_were_added_later_are_the_studys(rendering, tmp_path):
    """Perplexity falls from 80 to 20 within a minute, in its logarithm by the same share each second."""
    from studies import open_study

    study, added = tmp_path / "training_sparse_catalogs.json", tmp_path / "training_sparse_catalogs_more.json"
    study.write_text(
        json.dumps([run_of("base", 1, 40.0, 9.0, minutes=2.0), run_of("dense", 2, 50.0, 9.0, minutes=None)])
    )
    assert open_study(study).values("dense", "minutes to BASE's best")[2] != 1.5
    added.write_text(json.dumps([run_of("base_hot", 1, 20.0, 9.0, minutes=None), run_of("base", 2, 60.0, 9.0)]))
    found = open_study(study)
    assert found.systems == ["base", "dense", "base_hot"] and open_study(added) is None
    assert found.values("base", "perplexity all") == {1: 40.0, 2: 60.0}
    assert found.values("base_hot", "minutes to BASE's best") == {1: 1.5}
    assert 1 < found.values("dense", "minutes to BASE's best")[2] < 2
    (of_study, of_added) = rendering.results(tmp_path)
    assert of_study.study and not of_added.study and of_added.commits == ["10b1795"]
    added.write_text(study.read_text())
    with pytest.raises(ValueError, match="each system and seed once"):
        open_study(study)


DENSE = (("dense", COMMAND, (19.0, 21.0, 20.5), (14.0, 15.0, 14.4)),)
SPARSE = (
    ("base", BASE, (25.0, 26.0, 25.5), (11.0, 12.0, 11.5)),
    ("base_heated", [*BASE, "--heating-coefficient", "3.0"], (22.0, 23.1, 22.4), (11.5, 11.6, 11.4)),
    ("pretrained", BASE, (28.0, 29.1, 28.4), (9.0, 10.1, 9.4)),
    ("warm", [*BASE[:-1], "1", "--heating-coefficient", "1.0", "--heating-epochs", "7"], (24, 25, 24.4), (12, 13, 12)),
    ("other", [*BASE[:-1], "1", "--heating-coefficient", "1.0", "--dropout", "0"], (20, 21, 20.4), (12, 13, 12)),
)  # fmt: skip


@pytest.fixture
def results_with(rendering, tmp_path):
    """`results()` of a folder with one made-up study."""

    def of(runs, name="training_sparse_news"):
        (tmp_path / f"{name}.json").write_text(json.dumps(runs), encoding="utf-8")
        (tmp_path / f"{name}.md").write_text("# News\n\nData: news; `--vocab-size 1,000`.\n", encoding="utf-8")
        return rendering.results(tmp_path)

    return of


@pytest.fixture
def runs():
    return [
        run_of(system, seed, perplexity[seed - 1], bleu[seed - 1], command)
        for system, command, perplexity, bleu in (*DENSE, *SPARSE)
        for seed in (1, 2, 3)
    ]


def section(rendering, found, heading):
    text = rendering.Report(found, rendering.Versions({"10b1795": "0.1.0"})).papers()
    return unpadded(re.search(rf"^### {heading}.*?(?=^##|\Z)", text, re.M | re.S)[0])


def cells(text, row):
    return re.search(rf"^\| {re.escape(row)} \|(.*)\|$", text, re.M)[1].strip().split(" | ")


def test_a_studys_size_is_that_of_base_whatever_else_has_more_experts(results_with, runs):
    larger = run_of("base_64", 1, 24.0, 11.0, [*BASE, "--num-experts", "64"])
    (found,) = (one for one in results_with([*runs, larger]) if one.study)
    assert "4 experts in one block of 2" in found.study.scale and "64 experts" not in found.study.scale


def test_rows_are_judged_by_differences_with_the_same_seed(rendering, results_with, runs):
    text = section(rendering, results_with(runs), "Table 2, WMT-15")
    # By perplexity -3.0, -2.9, -3.1 and by BLEU +0.5, -0.4, -0.1 where the paper is above by 0.4.
    heated = cells(text, "BASE + heating")
    assert heated[0] == "19.9 / 11.5 ±0.1"
    assert heated[-3:] == [
        "+0.4 / +0.0 ±0.3 (no difference shown)",
        "-35,000 / +0.0 ±0.0 (no difference shown)",
        "-3.0 ±0.1 (agrees)",
    ]
    assert cells(text, "Dense pre-training")[-1] == "+3.0 ±0.1 (disagrees)"
    assert cells(text, "Dense")[-3] == "-0.1 / +3.0 ±0.0"  # the paper's is too small to judge by
    assert cells(text, "Dense pre-training + heating")[-1] == "not run"
    assert not re.search(r"^\| stock", text, re.M)


def test_one_seed_shows_nothing(rendering, results_with, runs):
    text = section(rendering, results_with([run for run in runs if run["seed"] == 2]), "Table 2, WMT-15")
    assert cells(text, "BASE + heating")[-1] == "-2.9 (one seed)"
    assert "seed 2: 7 one seed, 2 not run." in text


def test_a_run_that_never_came_there_leaves_it_undecided(rendering, results_with, runs):
    for run in runs:
        run["minutes_to_base_best"] = {"base": 3.0, "base_heated": 1.0 + run["seed"] / 100}.get(run["system"])
    text = section(rendering, results_with(runs), "Table 2, WMT-15")
    assert cells(text, "BASE + heating")[-2] == "-35,000 / -2.0 ±0.0 (agrees)"
    next(run for run in runs if run["system"] == "base_heated")["minutes_to_base_best"] = None
    text = section(rendering, results_with(runs), "Table 2, WMT-15")
    assert cells(text, "BASE + heating")[-2] == "-35,000 / -2.0 ±0.0 (no difference shown)"
    assert "(never in 1 of 3)" in text


def test_a_row_by_options_differs_from_another_in_nothing_else(rendering, results_with, runs):
    text = section(rendering, results_with(runs), "Table 1, WMT-15")
    assert cells(text, "BASE + heating, T_s = 1.0")[0] == "20.1 / 12.3 ±0.3"  # `warm`, and not `other`
    assert cells(text, "BASE + heating, T_s = 1.5")[0] == "20.0 / –"


def test_a_new_study_stands_in_all_places(rendering, results_with, runs):
    found = results_with(runs)
    report = rendering.Report(found, rendering.Versions({"10b1795": "0.1.0"}))
    assert report.overview().count("[training_sparse_news](../benchmarks/results/training_sparse_news.md)") == 2
    text = unpadded(report.papers())
    assert "**: News.\n  commit 10b1795 (0.1.0).\n  *scale*: news; `--vocab-size 1,000`; 2+2 blocks of 16" in text
    assert "BLEU `sig`" in text
    others = text.split("## In no paper's table")[1]
    assert cells(others, "other")[-2:] == ["20.5 ±0.3", "+1.6 ±1.8"]
    assert "| warm |" not in others  # it stands in table 1
    listed = unpadded(rendering.list_of(found, rendering.Versions()))
    assert (
        "[training_sparse_news.md](training_sparse_news.md) · [json](training_sparse_news.json) | News | 10b1795 |"
        in listed
    )


@pytest.mark.parametrize("content", [[], [1], {"runs": {"a": {"seed": 1}}}, {"commit": "abc", "sizes": {}}])
def test_other_results_are_listed_and_no_studies(rendering, results_with, content):
    (found,) = results_with(content, "sizes")
    assert found.study is None
    report = rendering.Report([found], rendering.Versions())
    assert "sizes" not in report.overview() + report.papers()
    assert "[sizes.md](sizes.md) · [json](sizes.json) | News |" in unpadded(
        rendering.list_of([found], rendering.Versions())
    )


def test_a_result_is_old_if_what_it_is_about_has_changed(rendering, results_with, runs):
    (found,) = results_with(runs, "training_multi30k")
    assert "remembered prices" in found.old({"10b1795": "0.1.1"})
    assert found.old({"10b1795": "0.1.10"}) == ""
    assert found.old({}) != ""  # of a commit that nobody knows


def test_timings_are_judged_by_the_quartiles_of_their_ratios(rendering, tmp_path):
    seconds = {"LoRA (peft)": [1.0, 2.0, 1.0], "1 source": [0.9, 1.9, 0.9], "6 sources": [0.9, 2.4, 1.2]}
    content = {"title": "T", "command": "python b.py", "commit": "10b1795", "machine": "M"}
    content |= {"raw": {"seconds of a step": seconds}}
    (tmp_path / "adapters_small.json").write_text(json.dumps(content), encoding="utf-8")
    text = section(rendering, rendering.results(tmp_path), "Table 5: what it costs")
    assert cells(text, "PEMT, 1 source")[-2] == "-7.0 / -10.0 (-10.0 to -7.5) (agrees)"
    assert "+40.8 / +20.0 (+5.0 to +20.0) (agrees)" in text
    assert "(no difference shown)" not in text


def test_targets_count_when_all_of_them_are_there(rendering):
    from studies import TaskStudy

    path = REPOSITORY / "benchmarks" / "results" / "training_pemt_encoder.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    assert TaskStudy(path, content).values("pemt", "all").keys() >= {1}
    content["settings"]["targets"].append("one more")
    study = TaskStudy(path, content)
    assert study.values("pemt", "all") == {}
    assert study.values("source_lora", "snli", 0)  # which have no targets


def test_parameters_are_counted_as_models_have_them(rendering):
    from studies import options_of, parameters

    from tests.helpers.models import dense_model, moe_model

    def count(model):
        return sum(parameter.numel() for parameter in model.parameters())

    vocabulary = 24  # 20 symbols, and fairseq's own
    dense, sparse = parameters(options_of(BASE), vocabulary)
    assert dense == count(dense_model())
    assert sparse == pytest.approx(count(moe_model()), rel=0.01)
