"""The page of runs, read without a browser: what goes into it, in how many bytes, and that nothing gets out."""

import base64
import hashlib
import json
import re
from dataclasses import replace

import lxml.html
import numpy as np
import pytest

from fairseq_mtmoe.analysis.report import page
from fairseq_mtmoe.analysis.report.gathering import ScoresOfRun, compare_setups, run_report
from fairseq_mtmoe.analysis.report.page import HERE, data_of, numbers, page_of, thinned
from fairseq_mtmoe.analysis.rows import VALIDATION, run_of
from tests.helpers.reported_runs import made_up_facts, read_facts


def parsed(facts):
    return lxml.html.document_fromstring(page_of(facts).encode())


def test_the_script_makes_elements_in_one_way_and_is_small():
    script, style = ((HERE / name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    assert not re.search("innerHTML|insertAdjacent|document.write|eval|</script|<!--", script)
    assert len(script.splitlines()) + len(style.splitlines()) <= 700


def test_the_policy_names_the_scripts_and_the_style_of_the_page_and_no_others():
    document = parsed(made_up_facts())
    policy = document.xpath("//meta[@http-equiv='Content-Security-Policy']/@content")[0]
    parts = [*document.xpath("//script[not(@type)]"), *document.xpath("//style")]
    hashes = [base64.b64encode(hashlib.sha256(part.text.encode()).digest()).decode() for part in parts]
    assert re.findall("sha256-([^']+)", policy) == hashes and len(hashes) == 3
    assert "unsafe" not in policy and policy.startswith("default-src 'none'")


def test_hostile_texts_make_no_element_and_no_attribute(tmp_path):
    documents = parsed(read_facts(tmp_path / "a")), parsed(read_facts(tmp_path / "b", hostile=True))
    plain, hostile = ([(one.tag, sorted(one.attrib)) for one in of.xpath("//*[not(self::code)]")] for of in documents)
    assert hostile == plain


def test_the_page_has_every_figure_of_the_facts(tmp_path):
    facts = read_facts(tmp_path)
    found = json.loads(parsed(facts).get_element_by_id("facts").text)
    for number, run in enumerate(facts.runs):
        shown = {(row["g"], row["m"], row["t"], row["l"]): row for row in found["rows"] if row["r"] == number}
        assert len(shown) == sum(row.group != "experts" for row in run.rows)
        for row in run.rows:
            if row.group != "experts":
                one = shown[row.group, row.metric, row.task, row.layer]
                assert one["v"] == pytest.approx(numbers(row.value)) and len(one["v"]) == len(row.value)
                assert found["moments"][one["a"]]["update"] == numbers(row.moments.update, 10)
        sample = run.scores.samples[0]
        text = next(text for text in found["texts"] if [number, sample.hypothesis] in text["by"])
        assert text["references"] == list(sample.references)
    scores = found["scores"]
    assert [one["label"] for one in scores["sets"]] == ["en-gu", "en-de", "en-fr", "low", "high", "all"]
    row = next(row for row in facts.runs[1].scores.rows if (row.task, row.metric) == ("en-de", "BLEU"))
    assert scores["values"]["BLEU"]["pair:en-de"]["1"] == pytest.approx([row.value[0], row.stderr], rel=1e-5)
    (first, second, differences), one = facts.comparisons[0], scores["differences"][0]
    assert (one["first"], one["second"], one["metric"]) == (first, second, "BLEU")
    of = differences.pairs["en-de"]
    assert one["of"]["pair:en-de"] == pytest.approx([of.difference, *of.interval, of.p_randomisation], rel=1e-4)
    assert page_of(facts) == page_of(facts)


def test_layers_of_several_sizes_are_packed_with_as_many_moments_as_there_is_room_for(monkeypatch):
    events = [{"event": "experts", "update": 5, "task_names": ["de", "fr"],
               "layers": {"a": [[1, 3], [0, 0]], "b": [[1, 2, 7], [5, 0, 0]]}}]  # fmt: skip
    facts = made_up_facts()
    facts.runs[0].rows = run_of(events, "run").rows
    (packed,) = data_of(facts)[0]["experts"]
    shares = [2500, 7500, page.NOTHING, page.NOTHING, 1000, 2000, 7000, 10_000, 0, 0]
    assert np.frombuffer(base64.b64decode(packed["packed"]), "<u2").tolist() == shares
    assert packed["sizes"] == [2, 3] and not packed["thinned"]
    monkeypatch.setattr(page, "CELLS", 2000)
    data, notes = data_of(made_up_facts(10, 10_000, 2))
    for one in data["experts"]:  # of 2 layers of 4 experts
        found = (len(one["updates"]), one["updates"][0], one["updates"][-1], one["thinned"])
        assert found == (12, 500, 10_000, True)
    assert any("Experts are shown at some validations only" in note for note in notes)


@pytest.mark.parametrize("room", [6000, 10])
def test_where_there_are_too_many_curves_moments_are_left_out_and_bests_and_peaks_stay(monkeypatch, room):
    facts = made_up_facts(5, 100_000)
    rows = facts.runs[0].rows
    assert [len(row.value) for row in thinned([rows])[0]] == [len(row.value) for row in rows]
    monkeypatch.setattr(page, "NUMBERS", room)
    (found,) = thinned([rows])
    kept = sum(len(row.value) for row in found if row.group in (*VALIDATION, "train"))
    assert kept <= room or room == 10  # there is never so little room
    for old, new in zip(rows, found, strict=True):
        if old.group in VALIDATION:
            assert len(new.value) < len(old.value) and new.value.min() == old.value.min()
            assert new.moments.update[[0, -1]].tolist() == old.moments.update[[0, -1]].tolist()
        if old.group == "train":
            assert new.value.max() == old.value.max()
    assert any("no room for every validation" in note for note in data_of(facts)[1])


def test_where_there_are_too_many_texts_each_pair_keeps_some(monkeypatch):
    monkeypatch.setattr(page, "TEXTS", 100_000)
    facts = made_up_facts(10, 1000, 2, samples=5)
    for run in facts.runs:
        run.scores.samples = [replace(one, hypothesis="ein Satz " * 130) for one in run.scores.samples]
    data, notes = data_of(facts)
    assert len(data["texts"]) == 10 * 4 and "There was no room for 20 translations." in notes


def test_ten_runs_of_fifty_languages_are_below_5_mb():
    assert len(page_of(made_up_facts(50, 100_000, 10, samples=5, num_experts=16)).encode()) < 5_000_000


def test_a_run_that_said_nothing_has_a_page():
    facts = made_up_facts()
    facts.runs[0] = run_report(run_of([], "run"), ScoresOfRun())
    text = parsed(facts).text_content()
    assert "No warnings." in text and "have no options, versions or commands" in text


def test_setups_say_where_runs_differ():
    differing, common = compare_setups([
        {"options": {"lr": [0.1], "arch": "x"}, "seed": 1, "sizes": {"en-de": 1000, "en-fr": 20},
         "versions": {"torch": "2"}},
        {"options": {"lr": [0.2], "arch": "x", "fp16": True}, "seed": 1, "commit": None},
    ])  # fmt: skip
    assert dict(differing) == {"training sentences": ["1,020 in 2 sets", ""], "--lr": ["[0.1]", "[0.2]"],
                               "torch (version)": ["2", ""], "--fp16": ["", "true"]}  # fmt: skip
    assert common == [("seed", "1"), ("--arch", "x")]


def test_spellings_of_one_path_are_no_difference():
    setup = {"data": "data/x", "folder": "/home", "options": {"init_encoder": "a/../b.pt"}, "parameters": 12_000}
    spelled = {"data": "/home/data/x/", "folder": "/tmp", "options": {"init_encoder": "/home/b.pt"}}
    differing, common = compare_setups([setup, {**spelled, "parameters": 24_000}])
    assert differing == [("parameters", ["12,000", "24,000"])]
    assert common == [("data", "data/x"), ("--init-encoder", "a/../b.pt")]
    elsewhere, _ = compare_setups([setup, {**setup, "folder": "/other"}])
    assert [name for name, _ in elsewhere] == ["data", "--init-encoder"]


def test_a_watched_page_is_looked_at_again_without_javascript_too():
    for watched, shown in ((30.0, ["30"]), (None, [])):
        document = parsed(replace(made_up_facts(), watched=watched))
        assert document.xpath("//noscript/meta[@http-equiv='refresh']/@content") == shown


def test_notes_are_said_once_and_warnings_of_all_runs_are_the_most_severe_first():
    bad = {"padding": 0.2, "skipped": 900}
    facts = made_up_facts(3, 1000, 3, change=lambda event: event | (bad if event["event"] == "train" else {}))
    facts.runs[1].notes.append("No `scores`.")
    for run in facts.runs:
        run.notes.append("Nothing is compared.")
    document = parsed(facts)
    found = [one.text_content().strip() for one in document.xpath("//section[@id='warnings']/p")]
    assert sorted(found) == ["Nothing is compared.", "run-2: No scores."]
    assert document.xpath("//ul[@class='warnings']/li/@class") == ["high"] * 3 + ["low"] * 3
