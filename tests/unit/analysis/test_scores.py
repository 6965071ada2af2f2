"""Scores are sacreBLEU's, averages are plain means, and the files say what the table says."""

import importlib.util
import json

import pytest
import sacrebleu

from fairseq_mtmoe.analysis import scores
from fairseq_mtmoe.analysis.scores import Average, PairScore, averages, bleu_tokenizer, in_order, score_pair
from fairseq_mtmoe.errors import UserError
from tests.helpers.tables import unpadded

HYPOTHESES = ["The house is small .", "He goes home, now.", "A tree"]
REFERENCES = ["The house is very small.", "He is going home now.", "A tall tree grows here"]


def score(pair, tier, bleu, chrf=0.0, signature="tok:13a"):
    return PairScore(pair, tier, 10, bleu, chrf, signature, "nw:2")


def test_scores_and_signatures_are_those_of_sacrebleu():
    result = score_pair("de-en", HYPOTHESES, REFERENCES, "high")
    assert result.bleu == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert result.chrf == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES], word_order=2).score
    assert 0 < result.bleu < 100 and 0 < result.chrf < 100
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


def test_chinese_is_scored_by_characters():
    assert score_pair("en-zh", ["我是学生和老师"], ["我是学生和医生"]).bleu > 40
    assert score_pair("en-de", ["我是学生和老师"], ["我是学生和医生"]).bleu == 0


@pytest.mark.parametrize(
    ("language", "installed", "expected"),
    [
        ("de", True, "13a"),
        ("zh", False, "zh"),
        ("zh_CN", True, "zh"),
        ("cmn", True, "zh"),
        ("ja_", True, "ja-mecab"),
        ("jpn", False, "char"),
        ("ko", True, "ko-mecab"),
        ("ko_KR", False, "char"),
        ("kok", True, "13a"),
    ],
)
def test_the_tokeniser_fits_the_language_and_what_is_installed(monkeypatch, language, installed, expected):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if installed else None)
    assert bleu_tokenizer(language) == expected


def test_japanese_is_scored_whatever_is_installed():
    result = score_pair("en-ja", ["私は学生です。"], ["私は先生です。"])
    assert 0 < result.bleu < 100
    assert "tok:char" in result.bleu_signature or "tok:ja-mecab" in result.bleu_signature


def test_nothing_to_score_is_said_in_one_sentence():
    with pytest.raises(UserError, match="en-de holds no sentence"):
        score_pair("en-de", [], [])
    with pytest.raises(UserError, match="2 sentences"):
        score_pair("en-de", ["a"], ["a", "b"])


def test_averages_count_every_pair_once():
    results = [score("en-de", "high", 30.0, 50.0), score("en-ro", "low", 10.0, 20.0), score("en-lv", "low", 5.0, 40.0)]
    assert averages(results) == {
        "low": Average(2, 7.5, 30.0),
        "high": Average(1, 30.0, 50.0),
        "all": Average(3, 15.0, pytest.approx(110 / 3)),
    }
    assert list(averages(results)) == ["low", "high", "all"]


def test_pairs_without_a_tier_count_for_all_only():
    assert averages([score("en-de", "", 30.0)]) == {"all": Average(1, 30.0, 0.0)}


def test_order_is_by_tier_then_name():
    results = [score(p, t, 1.0) for p, t in (("b", "high"), ("a", "high"), ("d", ""), ("c", "mid"), ("z", "low"))]
    assert [s.pair for s in in_order(results)] == ["z", "c", "a", "b", "d"]


def test_json_holds_every_number():
    results = [score("en-de", "high", 30.25, 50.0), score("en-ro", "low", 10.0, 20.0)]
    content = json.loads(scores.to_json(results, {"beam": 5}))
    assert content["settings"] == {"beam": 5}
    assert list(content["pairs"]) == ["en-ro", "en-de"]
    assert content["pairs"]["en-de"] == {
        "tier": "high", "sentences": 10, "bleu": 30.25, "chrf": 50.0, "bleu_signature": "tok:13a",
        "chrf_signature": "nw:2", "references": "", "altered_references": 0, "untranslated": 0,
    }  # fmt: skip
    assert content["averages"]["all"] == {"pairs": 2, "bleu": 20.125, "chrf": 35.0}
    assert scores.from_content(content) == ({"beam": 5}, scores.in_order(results))


OLD = {"tier": "low", "sentences": 10, "bleu": 30.25, "chrf": 50.0, "bleu_signature": "a", "chrf_signature": "b"}
NO_SCORES = (
    "3", "[]", "{}", '{"settings": {}, "pairs": []}', '{"settings": {}, "pairs": {"a": {"x": 1}}}',
    *(json.dumps({"settings": {}, "pairs": {"en-de": OLD | {name: wrong}}}) for name, wrong in (
        ("tier", []), ("sentences", "x"), ("bleu", "1"), ("chrf", 10**400), ("spbleu", True),
        ("metrics", {"COMET": ""}), ("bleu_signature", "\ud800"),
    )),
)  # fmt: skip


@pytest.mark.parametrize("text", NO_SCORES, ids=range(len(NO_SCORES)))
def test_what_holds_no_scores_is_a_value_error(text):
    with pytest.raises(ValueError):
        scores.from_content(json.loads(text))


def test_scores_of_0_1_0_are_read():
    _, results = scores.from_content({"settings": {}, "pairs": {"en-de": OLD}})
    assert results == [PairScore("en-de", "low", 10, 30.25, 50.0, "a", "b")]


def test_what_a_reader_would_not_think_is_remarked():
    result = PairScore("en-ja", "", 300, 1.0, 2.0, "a", "b", altered_references=107, untranslated=2)
    remarks = [
        "107 of 300 references lost words that the dictionary does not have",
        "2 longer than the model's positions not translated",
    ]
    assert scores.remarks(result) == remarks and scores.remarks(score("en-de", "high", 30.0)) == []
    assert scores.to_markdown([result], {}).splitlines()[-2:] == [f"- en-ja: {remark}" for remark in remarks]


def test_markdown_has_the_table_the_settings_and_the_signatures():
    results = [score("en-de", "high", 30.256, 50.0), score("en-zh", "low", 10.0, 20.0, "tok:zh")]
    lines = unpadded(scores.to_markdown(results, {"beam": 5})).splitlines()
    assert lines[2:4] == ["| en-zh | low | 10 | 10.00 | 20.00 |", "| en-de | high | 10 | 30.26 | 50.00 |"]
    assert "| **all** | **2 pairs** | | **20.13** | **35.00** |" in lines
    assert lines[-4:] == ["- beam: 5", "- `BLEU tok:zh` (en-zh)", "- `BLEU tok:13a` (en-de)", "- `chrF++ nw:2`"]
