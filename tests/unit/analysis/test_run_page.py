"""The page of runs, read without a browser: what goes into it, in how many bytes, and that nothing gets out."""

import base64
import hashlib
import json
import re
from pathlib import Path

import lxml.html
import numpy as np
import pytest

from fairseq_mtmoe.analysis import page
from fairseq_mtmoe.analysis.page import data, page_of, room
from fairseq_mtmoe.analysis.page.setups import setups_of
from fairseq_mtmoe.io.pages import visible
from tests.helpers.run_facts import made_up_facts
from tests.helpers.run_pages import HOSTILE, hostile_facts, with_experts

ECHARTS = Path(page.__file__).parent / "echarts"


def parsed(facts):
    return lxml.html.document_fromstring(page_of(facts).encode())


def facts_in(document):
    return json.loads(document.get_element_by_id("facts").text)


def unpack(experts):
    """What the page's script reads, slowly: [update][layer][task] to shares, or None."""
    values = iter(np.frombuffer(base64.b64decode(experts["packed"]), "<u2").tolist())
    return [
        [[[next(values) for _ in range(size)] for _ in experts["tasks"]] for size in experts["num_experts"].values()]
        for _ in experts["updates"]
    ]  # fmt: skip


def test_the_bundled_library_is_the_one_that_its_folder_names():
    named = re.search(r"^([0-9a-f]{64})  echarts.min.js$", (ECHARTS / "README.md").read_text(), re.MULTILINE).group(1)
    content = (ECHARTS / "echarts.min.js").read_bytes()
    assert hashlib.sha256(content).hexdigest() == named
    assert b"</script" not in content.lower() and b"<!--" not in content
    assert "Apache License" in (ECHARTS / "LICENSE").read_text() and (ECHARTS / "NOTICE").exists()
    assert (ECHARTS / "licenses" / "LICENSE-d3").exists()


def test_every_file_of_the_script_is_in_it():
    from fairseq_mtmoe.analysis.page.html import HERE, SCRIPTS

    assert sorted(SCRIPTS) == sorted(path.stem for path in (HERE / "js").iterdir())
    for name in SCRIPTS:
        text = (HERE / "js" / f"{name}.js").read_text(encoding="utf-8")
        assert "innerHTML" not in text and "insertAdjacent" not in text and "document.write" not in text
        assert "</script" not in text and "<!--" not in text and len(text.splitlines()) < 400


def test_the_policy_names_the_scripts_and_the_style_of_the_page_and_no_others():
    document = parsed(made_up_facts())
    policy = document.xpath("//meta[@http-equiv='Content-Security-Policy']/@content")[0]
    parts = [*document.xpath("//script[not(@type)]"), *document.xpath("//style")]
    hashes = [base64.b64encode(hashlib.sha256(part.text.encode()).digest()).decode() for part in parts]
    assert re.findall("sha256-([^']+)", policy) == hashes and len(hashes) == 3
    assert "unsafe" not in policy and policy.startswith("default-src 'none'")


def test_hostile_texts_make_no_element_and_no_attribute():
    plain, hostile = parsed(made_up_facts(4, 4000, 2)), parsed(hostile_facts())
    assert [one.tag for one in hostile.iter()] == [one.tag for one in plain.iter()]
    assert [sorted(one.attrib) for one in hostile.iter()] == [sorted(one.attrib) for one in plain.iter()]
    shown = hostile.text_content()
    assert all(visible(text) in shown for text in ("<img src='https://example.org/x' onerror='window.owned = 1'>",))


@pytest.mark.parametrize("text", HOSTILE)
def test_data_of_any_text_stays_data(text):
    script = data.as_script({"runs": [visible(text)]})
    assert not re.search("[<>&\u2028\u2029]", script)
    assert json.loads(script) == {"runs": [visible(text)]}


def test_the_page_has_every_figure_of_the_facts():
    facts = made_up_facts(5, 6000, 2)
    found = facts_in(parsed(facts))
    for run, shown in zip(facts["runs"], found["runs"], strict=True):
        packed = unpack(shown["experts"])
        assert np.allclose(np.array(packed) / 10_000, np.array(run["experts"]["shares"]), atol=1e-9)
        assert shown["samples"] == run["samples"] and shown["scores"]["rows"][0]["label"] == "en-aa"
        for row, one in zip(run["curves"]["rows"], shown["curves"]["rows"], strict=True):
            assert one["values"] == pytest.approx(row["values"], rel=1e-5)
    assert page_of(facts) == page_of(facts)


def test_what_is_not_a_number_is_nothing_and_long_numbers_are_short():
    found = data._shown({"a": [float("nan"), float("inf"), 1 / 3, 12345678.9, 3.0, True, None, 7]})
    assert found == {"a": [None, None, 0.333333, 12345700, 3, True, None, 7]}
    assert found["a"][5] is True


def test_layers_of_several_sizes_and_tasks_without_tokens_are_packed():
    shares = [[[[0.25, 0.75], []], [[0.1, 0.2, 0.7], [1.0, 0.0, 0.0]]]]
    packed = data.pack_experts({"updates": [5], "layers": ["a", "b"], "tasks": ["de", "fr"], 
                                "num_experts": {"a": 2, "b": 3},
                                "shares": shares, "thinned": False})  # fmt: skip
    none = data.NOTHING
    assert unpack(packed) == [[[[2500, 7500], [none, none]], [[1000, 2000, 7000], [10_000, 0, 0]]]]
    assert packed["thinned"] is False and "shares" not in packed


def test_where_there_are_too_many_shares_moments_are_left_out_and_the_page_says_so():
    facts = with_experts(made_up_facts(50, 10_000, 2), layers=6, experts=64, moments=30)
    experts = [run["experts"] for run in data.data_of(facts)["runs"]]
    cells = sum(len(one["updates"]) * 50 * 6 * 64 for one in experts)
    assert room.CELLS / 2 < cells <= room.CELLS
    assert all(one["thinned"] and one["updates"][0] == 500 and one["updates"][-1] == 15_000 for one in experts)
    assert [run["experts"]["thinned"] for run in facts["runs"]] == [False, False]  # the facts are as they were


def test_where_there_are_too_many_curves_moments_are_left_out_and_bests_and_peaks_stay():
    facts = made_up_facts(50, 100_000, 12)
    before, found = facts["runs"], data.data_of(facts)["runs"]
    numbers = sum(len(row["values"]) for run in found for part in ("curves", "train") for row in run[part]["rows"])
    assert room.NUMBERS / 2 < numbers <= room.NUMBERS
    for old, new in zip(before, found, strict=True):
        assert new["curves"]["thinned"] and not old["curves"].get("thinned")
        moments = new["curves"]["moments"]["update"]
        assert {moments[0], moments[-1]} == {old["curves"]["moments"]["update"][place] for place in (0, -1)}
        for one, other in zip(old["curves"]["rows"], new["curves"]["rows"], strict=True):
            best = max if one["better"] == "higher" else min
            assert best(other["values"]) == pytest.approx(best(one["values"]), rel=1e-5)
            assert len(other["values"]) == len(moments)
        for one, other in zip(old["train"]["rows"], new["train"]["rows"], strict=True):
            assert max(other["values"]) == pytest.approx(max(one["values"]), rel=1e-5)


def test_thousands_of_validations_of_many_runs_are_left_out_too(monkeypatch):
    monkeypatch.setattr(room, "NUMBERS", 10)  # there is never room
    facts = made_up_facts(2, 100_000, 2)
    for run in facts["runs"]:
        run["curves"]["moments"] = {name: values * 15 for name, values in run["curves"]["moments"].items()}
        for row in run["curves"]["rows"]:
            row["values"] *= 15
    for run in data.data_of(facts)["runs"]:
        assert len(run["curves"]["moments"]["update"]) <= 3 + len(run["curves"]["rows"])
        assert len(run["train"]["moments"]["update"]) == 2


def test_a_few_runs_have_room_for_every_validation():
    facts = made_up_facts(50, 100_000, 3)
    found = data.data_of(facts)["runs"]
    assert [run["curves"].get("thinned") for run in found] == [None] * 3
    assert [len(run["train"]["moments"]["update"]) for run in found] == [
        len(run["train"]["moments"]["update"]) for run in facts["runs"]
    ]


def test_where_there_are_too_many_texts_each_pair_keeps_some():
    facts = made_up_facts(50, 1000, 2, samples=5)
    for run in facts["runs"]:
        for samples in run["samples"].values():
            for one in samples:
                one["hypothesis"] = "ein Satz " * 300
    found = data.data_of(facts)
    kept = [len(samples) for run in found["runs"] for samples in run["samples"].values()]
    assert set(kept) == {3} and found["texts_left_out"] == 2 * 50 * 2


@pytest.mark.parametrize("runs", [1, 3])
def test_fifty_languages_and_100_000_updates_are_below_5_mb(runs):
    facts = with_experts(made_up_facts(50, 100_000, runs, samples=5), layers=12, experts=64, moments=30)
    text = page_of(facts)
    assert len(text.encode()) < 5_000_000
    train = json.loads(re.search(r'id="facts">(.*?)</script>', text).group(1))["runs"][0]["train"]
    assert len(train["moments"]["update"]) == 2000


def test_a_run_that_said_nothing_has_a_page():
    facts = made_up_facts(2, 1000)
    empty = {"update": [], "minutes": [], "tokens": []}
    facts["runs"][0] |= {
        "curves": {"subset": "valid", "moments": empty, "rows": []}, "train": {"moments": empty, "rows": []},
        "sampling": {"epochs": [], "updates": [], "temperature": [], "probabilities": {}, "candidates": False},
        "experts": {"updates": [], "layers": [], "tasks": [], "num_experts": {}, "shares": [], "thinned": False},
        "entropy": {"updates": [], "layers": [], "tasks": [], "values": []},
        "scores": None, "samples": {}, "warnings": [],
        "setup": {}, "notes": [],
        "progress": {"updates": 0, "minutes": None, "tokens": None, "epoch": None, "skipped": None, "best": None,
                     "finished": None},
    }  # fmt: skip
    text = parsed(facts).text_content()
    assert "Nothing of note" in text and "do not say how the runs were started" in text


def test_setups_say_where_runs_differ():
    found = setups_of({
        "a": {"options": {"lr": [0.1], "arch": "x"}, "seed": 1, "sizes": {"en-de": 1000, "en-fr": 20},
              "versions": {"torch": "2"}},
        "b": {"options": {"lr": [0.2], "arch": "x", "fp16": True}, "seed": 1, "commit": None},
    })  # fmt: skip
    assert found.runs == ["a", "b"]
    assert dict(found.differing) == {"training sentences": ["1,020 in 2 sets", ""], "--lr": ["[0.1]", "[0.2]"],
                                     "torch (version)": ["2", ""], "--fp16": ["", "true"]}  # fmt: skip
    assert found.common == [("seed", "1"), ("--arch", "x")]


def test_spellings_of_one_path_are_no_difference_and_sizes_of_models_are():
    setup = {"data": "data/x", "folder": "/home", "options": {"init_encoder": "a/../b.pt"}, "parameters": 12_000}
    spelled = {"data": "/home/data/x/", "folder": "/tmp", "options": {"init_encoder": "/home/b.pt"}}
    found = setups_of({"a": setup, "b": {**spelled, "parameters": 24_000}, "c": {**spelled, "parameters": 24_000}})
    assert found.differing == [("parameters", ["12,000", "24,000", "24,000"])]
    assert found.common == [("data", "data/x"), ("--init-encoder", "a/../b.pt")]
    elsewhere = setups_of({"a": setup, "b": {**setup, "folder": "/other"}})
    assert [name for name, _ in elsewhere.differing] == ["data", "--init-encoder"]


def test_commands_are_apart_from_what_differs():
    """They are long, and differ where runs are compared: what they differ in stands in the table."""
    setup = {"options": {"lr": [0.1]}, "command": "fairseq-train --lr 0.1"}
    found = setups_of({"a": setup, "b": {**setup, "command": "<b>"}, "c": {"options": {"lr": [0.1]}}})
    assert found.commands == [("a", "fairseq-train --lr 0.1"), ("b", "<b>")]
    assert (found.differing, found.common) == ([], [("--lr", "[0.1]")])
    facts = made_up_facts(3, 1000, 2)
    facts["runs"][1]["setup"]["command"] = "train '<b>'"
    assert parsed(facts).xpath("//dl[@class='commands']/dd[last()]/text()") == ["train '<b>'"]


def test_a_watched_page_is_looked_at_again_without_javascript_too():
    document = parsed(made_up_facts() | {"watched": 30.0})
    assert document.xpath("//noscript/meta[@http-equiv='refresh']/@content") == ["30"]
    assert not parsed(made_up_facts()).xpath("//noscript/meta")


def test_what_is_not_shown_of_all_runs_is_said_once():
    facts = made_up_facts(3, 1000, 3)
    facts["runs"][1]["notes"].append("No `scores`.")
    facts["notes"].append("Nothing is compared.")
    found = [one.text_content().strip() for one in parsed(facts).xpath("//section[@id='warnings']/p")]
    assert found == ["Nothing is compared.", facts["runs"][0]["notes"][0].replace("`", ""), "run-2: No scores."]


def test_warnings_of_all_runs_are_the_most_severe_first():
    items = parsed(made_up_facts(3, 1000, 3)).xpath("//ul[@class='warnings']/li/@class")
    assert items == ["high"] * 3 + ["low"] * 3
