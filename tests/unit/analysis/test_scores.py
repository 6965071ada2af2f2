"""Scores are sacreBLEU's, averages are plain means, and the files say what the table says."""

import importlib.util
import json

import pytest
import sacrebleu

from fairseq_mtmoe.analysis.score_files import scores_in, scores_of_pairs
from fairseq_mtmoe.analysis.score_tables import to_json, to_markdown
from fairseq_mtmoe.analysis.scores import PairScore, bleu_tokenizer, score_pair
from fairseq_mtmoe.errors import UserError
from tests.helpers.refused import refused
from tests.helpers.tables import unpadded

HYPOTHESES = ["The house is small .", "He goes home, now.", "A tree"]
REFERENCES = ["The house is very small.", "He is going home now.", "A tall tree grows here"]


def score(pair, tier, bleu, chrf=0.0, signature="tok:13a"):
    return PairScore(pair, tier, 10, bleu, chrf, signature, "nw:2")


def test_scores_and_signatures_are_those_of_sacrebleu():
    result = score_pair("de-en", HYPOTHESES, REFERENCES, "high")
    assert result.bleu == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert result.chrf == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES], word_order=2).score
    assert (result.pair, result.tier, result.sentences) == ("de-en", "high", 3)
    assert f"tok:13a|smooth:exp|version:{sacrebleu.__version__}" in result.bleu_signature
    assert "nc:6|nw:2" in result.chrf_signature


def test_bleu_is_that_of_fairseqs_scorer():
    from fairseq.scoring.bleu import SacrebleuConfig, SacrebleuScorer

    for pair, tokenizer in (("en-de", "13a"), ("en-zh_CN", "zh")):
        scorer = SacrebleuScorer(SacrebleuConfig(sacrebleu_tokenizer=tokenizer))
        hypotheses, references = [*HYPOTHESES, "我是学生吗  "], [*REFERENCES, "我不是学生。"]
        for reference, hypothesis in zip(references, hypotheses, strict=True):
            scorer.add_string(reference, hypothesis)
        assert score_pair(pair, hypotheses, references).bleu == scorer.score()
    assert score_pair("en-zh", ["我是学生和老师"], ["我是学生和医生"]).bleu > 40  # by characters
    assert score_pair("en-de", ["我是学生和老师"], ["我是学生和医生"]).bleu == 0


@pytest.mark.parametrize(
    ("language", "installed", "expected"),
    [("kok", True, "13a"), ("cmn", False, "zh"), ("ja_XX", True, "ja-mecab"), ("kor", False, "char")],
)
def test_the_tokeniser_fits_the_language_and_what_is_installed(monkeypatch, language, installed, expected):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if installed else None)
    assert bleu_tokenizer(language) == expected
    assert score_pair("en-ja", ["私は学生です。"], ["私は先生です。"]).bleu > 0  # whatever is installed


def test_nothing_to_score_is_said_in_one_sentence():
    with pytest.raises(UserError, match="en-de holds no sentence"):
        score_pair("en-de", [], [])
    with refused("hypotheses of en-de"):
        score_pair("en-de", ["a"], ["a", "b"])


def test_averages_count_every_pair_once_low_tier_first():
    results = [score("en-de", "high", 30.0, 50.0), score("en-ro", "low", 10.0, 20.0), score("en-lv", "low", 5.0, 40.0),
               score("en-xx", "", 3.0)]  # fmt: skip
    scores = scores_of_pairs(results, {})
    assert list(scores.pairs) == ["en-lv", "en-ro", "en-de", "en-xx"]
    assert [(row.group, row.task, row.metric, row.n, row.figure) for row in scores.averages] == [
        ("tier", "low", "BLEU", 2, 7.5), ("tier", "low", "chrF++", 2, 30.0),
        ("tier", "high", "BLEU", 1, 30.0), ("tier", "high", "chrF++", 1, 50.0),
        ("all", "all", "BLEU", 4, 12.0), ("all", "all", "chrF++", 4, 27.5),
    ]  # fmt: skip


def test_json_holds_every_number():
    results = [score("en-de", "high", 30.25, 50.0), score("en-ro", "low", 10.0, 20.0)]
    content = json.loads(to_json(scores_of_pairs(results, {"beam": 5})))
    assert content["settings"] == {"beam": 5}
    assert list(content["pairs"]) == ["en-ro", "en-de"]
    assert content["pairs"]["en-de"] == {
        "tier": "high", "sentences": 10, "bleu": 30.25, "chrf": 50.0, "bleu_signature": "tok:13a",
        "chrf_signature": "nw:2", "references": "", "altered_references": 0, "untranslated": 0,
    }  # fmt: skip
    assert content["averages"]["all"] == {"pairs": 2, "bleu": 20.125, "chrf": 35.0}
    found = scores_in(content)
    assert (found.settings, list(found.pairs.values())) == ({"beam": 5}, results[::-1])


OLD = {"tier": "low", "sentences": 10, "bleu": 30.25, "chrf": 50.0, "bleu_signature": "a", "chrf_signature": "b"}


@pytest.mark.parametrize(
    "content",
    [3, {}, {"pairs": []}, *({"pairs": {"en-de": {**OLD, **wrong}}} for wrong in (
        {"bleu": "1"}, {"chrf": 10**400}, {"metrics": {"COMET": ""}}, {"bleu_signature": "\ud800"}, {"more": 1},
    ))],
)  # fmt: skip
def test_what_holds_no_scores_is_a_value_error(content):
    with pytest.raises(ValueError):
        scores_in({"settings": {}, **content} if content and content != 3 else content)


def test_scores_of_0_1_0_are_read():
    found = scores_in({"settings": {}, "pairs": {"en-de": OLD}}).pairs
    assert found == {"en-de": PairScore("en-de", "low", 10, 30.25, 50.0, "a", "b")}


def test_markdown_has_the_table_the_settings_the_signatures_and_remarks():
    zh = PairScore("en-zh", "low", 300, 10.0, 20.0, "tok:zh", "nw:2", altered_references=107, untranslated=2)
    lines = unpadded(to_markdown(scores_of_pairs([score("en-de", "high", 30.256, 50.0), zh], {"beam": 5}))).splitlines()
    assert lines[2:4] == ["| en-zh | low | 300 | 10.00 | 20.00 |", "| en-de | high | 10 | 30.26 | 50.00 |"]
    assert "| **all** | **2 pairs** | | **20.13** | **35.00** |" in lines
    assert lines[-6:] == [
        "- beam: 5", "- `BLEU tok:zh` (en-zh)", "- `BLEU tok:13a` (en-de)", "- `chrF++ nw:2`",
        "- en-zh: 107 of 300 references lost words that the dictionary does not have",
        "- en-zh: 2 longer than the model's positions not translated",
    ]  # fmt: skip
