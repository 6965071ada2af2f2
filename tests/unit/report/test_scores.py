"""Scores are sacreBLEU's, averages count each pair or task once, and the files say what the table says."""

import json
import math

import pytest
import sacrebleu
from fairseq.scoring.bleu import SacrebleuConfig, SacrebleuScorer
from hypothesis import given
from hypothesis import strategies as st

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.tables import Table
from fairseq_mtmoe.core.tiers import TIER_RULE
from fairseq_mtmoe.report.score_files import scores_in, scores_of_pairs, scores_of_tasks
from fairseq_mtmoe.report.score_tables import score_table, to_json, to_markdown
from fairseq_mtmoe.report.scores import PairScore, bleu_tokenizer, score_pair
from tests.helpers.benchmark_scores import set_of, task_of
from tests.helpers.tables import unpadded

HYPOTHESES = ["The house is small .", "He goes home, now.", "A tree", "我是学生吗  "]
REFERENCES = ["The house is very small.", "He is going home now.", "A tall tree grows here", "我不是学生。"]


def score(pair, tier, bleu, chrf=0.0, signature="tok:13a"):
    return PairScore(pair, tier, 10, bleu, chrf, signature, "nw:2")


@pytest.mark.parametrize(("pair", "tokenizer"), [("en-de", "13a"), ("en-zh_CN", "zh")])
def test_scores_and_signatures_are_those_of_sacrebleu_and_fairseqs_scorer(pair, tokenizer):
    scorer = SacrebleuScorer(SacrebleuConfig(sacrebleu_tokenizer=tokenizer))
    for reference, hypothesis in zip(REFERENCES, HYPOTHESES, strict=True):
        scorer.add_string(reference, hypothesis)
    result = score_pair(pair, HYPOTHESES, REFERENCES, "high")
    assert result.bleu == scorer.score()
    assert result.chrf == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES], word_order=2).score
    assert f"tok:{tokenizer}|smooth:exp|version:{sacrebleu.__version__}" in result.bleu_signature
    assert "nc:6|nw:2" in result.chrf_signature
    by_characters = score_pair(pair, ["我是学生和老师"], ["我是学生和医生"]).bleu
    assert by_characters > 40 if tokenizer == "zh" else by_characters == 0
    for texts in (([], []), (["a"], ["a", "b"])):
        with pytest.raises(UserError, match=pair):
            score_pair(pair, *texts)


def test_the_tokeniser_fits_the_language():
    languages = ("kok", "cmn", "zh-TW", "ja_XX", "kor")
    assert [*map(bleu_tokenizer, languages)] == ["13a", "zh", "zh", "ja-mecab", "ko-mecab"]


def test_averages_count_every_pair_once_low_tier_first():
    results = ("en-de", "high", 30.0, 50.0), ("en-ro", "low", 10.0, 20.0), ("en-lv", "low", 5.0, 40.0), ("en-xx", "", 3)
    scores = scores_of_pairs([score(*one) for one in results], {})
    assert list(scores.pairs) == ["en-lv", "en-ro", "en-de", "en-xx"]
    assert [(row.task, row.metric, row.n, row.figure) for row in scores.averages] == [
        ("low", "BLEU", 2, 7.5), ("low", "chrF++", 2, 30.0), ("high", "BLEU", 1, 30.0), ("high", "chrF++", 1, 50.0),
        ("all", "BLEU", 4, 12.0), ("all", "chrF++", 4, 27.5),
    ]  # fmt: skip


def test_json_holds_every_number_and_other_fields_are_refused():
    results = [score("en-de", "high", 30.25, 50.0), score("en-ro", "low", 10.0, 20.0)]
    content = json.loads(to_json(scores_of_pairs(results, {"beam": 5})))
    assert list(content["pairs"]) == ["en-ro", "en-de"]
    assert content["averages"]["all"] == {"pairs": 2, "bleu": 20.125, "chrf": 35.0}
    found = scores_in(content)
    assert (found.settings, list(found.pairs.values())) == ({"beam": 5}, results[::-1])
    for wrong in ({"bleu": "1"}, {"metrics": {"COMET": ""}}, {"more": 1}):
        with pytest.raises(ValueError):
            scores_in({"settings": {}, "pairs": {"en-de": content["pairs"]["en-de"] | wrong}})


def test_markdown_has_the_table_the_settings_the_signatures_and_remarks():
    zh = PairScore("en-zh", "low", 300, 10.0, 20.0, "tok:zh", "nw:2", altered_references=107)
    lines = unpadded(to_markdown(scores_of_pairs([score("en-de", "high", 30.256, 50.0), zh], {"beam": 5}))).splitlines()
    assert {
        "| en-zh | low | 300 | 10.00 | 20.00 |", "| **all** | **2 pairs** | | **20.13** | **35.00** |", "- beam: 5",
        "- `BLEU tok:zh` (en-zh)", "- `chrF++ nw:2`", f"- {TIER_RULE}",
        "- en-zh: 107 of 300 references lost words that the dictionary does not have",
    } <= set(lines)  # fmt: skip


# ---- tasks of a benchmark ----

RTE, COLA = task_of("rte", set_of(70.0, 3.0, 277)), task_of("cola", set_of(40.0, 4.0, 1043))
MNLI = task_of("mnli", set_of(83.0, 0.3, 9815), set_of(85.0, 0.4, 9832))
SETTINGS = {"subset": "valid", "seed": 3}
SCORES = scores_of_tasks({**COLA, **RTE, **MNLI}, SETTINGS)


def test_a_task_with_several_sets_counts_once():
    mnli = SCORES.main["mnli"]
    assert (mnli.figure, mnli.n, mnli.stderr) == (84.0, 19647, pytest.approx(math.sqrt(0.3**2 + 0.4**2) / 2))
    small, every = SCORES.averages
    assert (small.task, small.n, small.figure, small.stderr) == ("small", 2, 55.0, 2.5)
    assert (every.task, every.figure) == ("all", pytest.approx((40 + 70 + 84) / 3))
    assert [row.task for row in scores_of_tasks(MNLI, {}).averages] == ["all"]


def test_the_majority_class_stands_beside_scores_and_one_prediction_is_said():
    sets = (set_of(33.0, examples=10, majority={"accuracy": 35.0}, constant="neutral"),
            set_of(40.0, examples=10, majority={"accuracy": 36.0}))  # fmt: skip
    scores = scores_of_tasks({**COLA, **task_of("mnli", *sets)}, SETTINGS)
    assert scores_in(json.loads(to_json(scores))).majority == {"mnli": 35.5}
    assert {"| MNLI | accuracy | 20 | 36.50 ±0.71 | 35.50 |", "| CoLA | matthews | 1,043 | 40.00 ±4.00 | |",
            "| · mnli/2 | | 10 | 40.00 ±1.00 | 36.00 |",
            "mnli: every prediction is `neutral`."} <= set(unpadded(to_markdown(scores)).splitlines())  # fmt: skip


def test_an_error_that_is_not_known_is_null():
    scores = scores_of_tasks(task_of("rte", set_of(100.0, math.nan, 1)), {})
    content = json.loads(to_json(scores))
    assert content["tasks"]["rte"]["standard_error"] is None and content["averages"]["all"]["standard_error"] is None
    assert math.isnan(scores_in(content).main["rte"].stderr)
    assert "±" not in unpadded(score_table(scores).in_markdown())


PLAIN = st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3)
VALUES = PLAIN | st.lists(PLAIN, max_size=3) | st.dictionaries(st.text(max_size=3), PLAIN, max_size=3)
KEYS = ["tasks", "mnli", "sets", "mnli"]
PATHS = st.sampled_from([["settings"], [*KEYS, "score"], [*KEYS, "examples"], *(KEYS[:size] for size in range(5))])


@given(PATHS, VALUES)
def test_damaged_scores_are_refused_or_taken_whole(path, value):
    inner = root = {"": json.loads(to_json(SCORES))}
    for key in ["", *path][:-1]:
        inner = inner[key]
    inner[["", *path][-1]] = value
    try:
        scores = scores_in(root[""])
    except ValueError:
        return
    json.loads(to_json(scores))  # what is taken is scores


def test_groups_have_averages_where_there_are_several():
    tasks = {}
    for name, group, figure in (("a", "GLUE", 80.0), ("b", "GLUE", 90.0), ("c", "NER", 50.0), ("d", "", 0.0)):
        tasks |= task_of(name, set_of(figure), group=group)
    scores = scores_in(json.loads(to_json(scores_of_tasks(tasks, {}))))
    assert scores.groups == {"GLUE": ["a", "b"], "NER": ["c"], "all": ["a", "b", "c", "d"]}
    assert {row.task: row.figure for row in scores.averages} == {"GLUE": 85, "NER": 50, "all": 55}
    assert list(scores_of_tasks({name: tasks[name] for name in "ab"}, {}).groups) == ["all"]


def test_latex_has_every_cell_with_its_signs_escaped():
    cells = [["en-de_DE", "high", "26.50 ±0.41"], [r"50% & #1 \end{tabular}", "", "−3"]]
    text = Table(["pair", "tier", "BLEU"], cells, [["all", "", "11.75"]], 2).in_latex()
    rows = [line.removesuffix(r"\\").split(" & ") for line in text.splitlines() if " & " in line]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["pair", "tier", "BLEU"], [r"en-de\_DE", "high", r"26.50 $\pm$0.41"],
        [r"50\% \& \#1 \textbackslash{}end\{tabular\}", "", "$-$3"], [r"\textbf{all}", "", r"\textbf{11.75}"],
    ]  # fmt: skip
    assert text.startswith("\\begin{tabular}{llr}\n")
