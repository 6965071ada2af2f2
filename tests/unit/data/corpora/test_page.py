"""The page of a report: the report's figures, and nothing of a corpus but its text."""

import functools
import json
import shlex

import pytest
from fairseq import options
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import html

from fairseq_mtmoe import register
from fairseq_mtmoe.data.corpora.page import markdown_of, page_of, training_command
from fairseq_mtmoe.data.corpora.page.findings import findings
from fairseq_mtmoe.data.corpora.page.samples import choose
from fairseq_mtmoe.io.pages import policy_hash, visible
from tests.helpers.corpus_reports import HOSTILE, RULES, hostile, report
from tests.helpers.tables import unpadded


def parsed(page):
    return html.document_fromstring(page)


def table_of(tree, text):
    """The cells of the first table whose head has a column of this name."""
    table = next(one for one in tree.iter("table") if text in [cell.text_content() for cell in one.iter("th")])
    return [[cell.text_content().strip() for cell in row.iter("th", "td")] for row in table.iter("tr")]


def structure(page):
    """Every element with its attributes, but for what these say of texts."""
    return [
        (one.tag, tuple(name for name, _ in one.items())) for one in parsed(page).iter() if isinstance(one.tag, str)
    ]


def test_the_figures_are_the_reports():
    found = report(3, 4)
    tree = parsed(page_of(found))
    rows = table_of(tree, "shares")
    # en-aa has two corpora of 1000 pairs, of which 1 + 2 + … + 9 are left out, and 7 lines that cannot be read
    assert rows[1] == ["en-aa", "", "2,014", f"{2 * (1000 - 45):,}", "95%"]
    bars = [[one.get("class").split() for one in bar] for bar in tree.find_class("track")]
    assert bars[0][0] == ["kept", "w948"] and ".w948 { width: 94.8%; }" in tree.findtext(".//style")
    assert len(bars[0]) == 1 + len(RULES) + 1 and bars[0][-1][1] == "w7"
    by_rule = table_of(tree, "near duplicate")
    assert by_rule[0] == ["pair", *(rule.replace("_", " ") for rule in RULES), "bad lines"]
    assert by_rule[-1] == ["all", *(str(4 * number) for number in range(1, 10)), "28"]
    assert table_of(tree, "language pairs")[1:] == [
        ["high", "", "1", "100", "100", "100"],
        ["mid", "", "1", "1,001", "100", "100"],
        ["low", "", "1", "10,002", "100", "100"],
    ]
    assert table_of(tree, "shards")[1] == ["en-ac", "low", "", "10,002", "100", "100", "3", "0.06%"]
    assert table_of(tree, "pieces per word")[3] == ["ab", "", "1.24", "3.50", "0.020%", "99.950%Latn 99.90%", ""]
    figure = tree.find_class("columns")[0]
    assert [one.get("class") for one in figure] == ["h250", "h1000", "h125"]
    assert figure.get("aria-label") == "aa: 1–10 tokens 10, 11–20 tokens 40, 21 and more tokens 5"


def test_evaluation_data_of_the_other_order_serves_a_pair():
    found = report(3, 3)
    pairs = found["pairs"]
    before = findings(found)
    pairs["ab-en"] = {**pairs["en-ab"], "train": 0}
    pairs["en-ab"] = {**pairs["en-ab"], "valid": 0, "test": 0}
    assert findings(found) == before
    pairs["ab-en"]["valid"] = 0
    assert len(findings(found)) == len(before) + 2  # one for each order


def test_warnings_come_first():
    found = report(3, 3)
    corpus, empty = found["corpora"]["corpus-0"], found["corpora"]["corpus-1"]
    corpus["bad"] = {"encoding": 20, "untranslated": 900}
    corpus["kept"], corpus["dropped"]["copy"] = 100, 800
    empty.update(read=0, kept=0, dropped={}, bad={})
    found["pairs"]["en-ab"]["test"] = 0
    found["pairs"]["en-ac"]["tokens"]["test"]["ac"]["unknown"] = 60
    assert findings(found) == [
        "Vocabulary, aa: a word is cut into too many pieces",
        "en-ab has no sentence pair for test.",
        "en-ac: 0.6% of the test tokens are not in the vocabulary, and no model can write them.",
        "corpus-0 (en-aa): 1.0% of its lines could not be read (encoding 20).",
        "corpus-0 (en-aa): 10.0% of its pairs were kept; most of the others by the rule copy (800).",
        "corpus-1 (en-ab) has no sentence pair that can be read.",
    ]
    first = parsed(page_of(found)).find(".//section")
    assert first.get("class") == "findings"
    assert [item.text_content() for item in first.iter("li")] == findings(found)
    assert not parsed(page_of({**report(1, 1), "vocabulary": {}})).find_class("findings")


def test_what_is_drawn_for_validation_and_test_is_not_lost():
    found = report(1, 1)
    corpus = found["corpora"]["corpus-0"]
    corpus.update(read=1000, drawn=600, kept=355)  # and 45 that rules left out
    assert not [sentence for sentence in findings(found) if "were kept" in sentence]
    tree = parsed(page_of(found))
    assert table_of(tree, "shares")[0][2:] == ["lines", "drawn", "kept", "%"]
    assert table_of(tree, "shares")[1][2:] == ["1,007", "600", "355", "87%"]  # of 407
    bars = dict(one.get("class").split() for one in tree.find_class("track")[0])
    assert bars["drawn"] == f"w{round(1000 * 600 / 1007)}"
    text = unpadded(markdown_of(found))
    assert "| en-aa | 1,007 | 600 | 355 | 87% |" in text and "- `drawn`: taken for validation and test" in text
    corpus.update(drawn=500, kept=155)
    assert "corpus-0 (en-aa): 31.0% of its pairs were kept; most" in "".join(findings(found))


def test_it_is_said_how_to_train_on_it():
    found = report(3, 4)
    command = training_command(found)
    assert parsed(page_of(found)).findtext(".//pre") == command and f"```\n{command}\n```" in markdown_of(found)
    assert "DATA/shard0:DATA/shard1:DATA/shard2" in page_of(found) and "DATA/shard2`" in markdown_of(found)
    mbart = {**found, "recipe": {"vocabulary": {"language_tokens": "mbart"}}}
    words = shlex.split(training_command(mbart, "'my data'").replace("\\\n", " "))
    assert words[:2] == ["fairseq-train", "my data"] and "my data/lang_pairs.txt" in words
    register()
    parser = options.get_training_parser(default_task="translation_heated")
    args = options.parse_args_and_arch(parser, words[1:])
    assert args.lang_tok_style == "mbart" and args.save_dir == "RUN" and args.encoder_langtok == "tgt"


def test_hostile_text_is_text():
    page = page_of(hostile())
    tree = parsed(page)
    page.encode()  # no lone surrogate is left
    assert structure(page) == structure(page_of(hostile([f"x{number}" for number in range(len(HOSTILE))])))
    shown = [one.text_content() for one in tree.find_class("samples")[0].iter("p")]
    assert shown == [visible(text) for text in HOSTILE[:5] for _ in "st"]
    assert tree.findtext(".//title").endswith(HOSTILE[1])


def page_with(line):
    """A small page with a line in every place of a user's text."""
    found = report(1, 1)
    one = found["corpora"]["corpus-0"]
    one["files"], one["samples"] = [line], {"copy": [[1, line, line]]}
    one["bad_samples"] = [[line, 2, "encoding", line]]
    found["recipe"]["vocabulary"] = {"model": line}
    found["vocabulary"]["en"]["warning"] = f"w {line}"
    return page_of(found)


HARMLESS = functools.cache(lambda: structure(page_with("x")))


@settings(max_examples=40, deadline=None)
@given(st.text(st.characters(), max_size=30))
def test_any_text_stays_where_it_is(text):
    page = page_with(text)
    assert structure(page) == HARMLESS()
    sides = [one.text_content() for one in parsed(page).find_class("samples")[0].iter("p")]
    assert sides == [visible(text)] * 2
    page.encode()


def test_what_cannot_be_seen_is_spelled():
    assert visible("a\u202eb\x00\ud800\n\u2028") == "a⟨U+202E⟩b⟨U+0000⟩⟨U+D800⟩⟨U+000A⟩⟨U+2028⟩"
    assert visible(HOSTILE[-1]) == HOSTILE[-1]  # Arabic script, and the joiners that Persian and Hindi are spelled with


def test_nothing_is_fetched_and_nothing_runs():
    tree = parsed(page_of(hostile()))
    assert all(link.get("href").startswith("#") for link in tree.iter("a"))
    assert not [one for one in tree.iter() if isinstance(one.tag, str) and (one.get("src") or one.tag == "link")]
    assert not [name for one in tree.iter() for name in one.attrib if name.startswith("on")]
    (policy,) = [one.get("content") for one in tree.iter("meta") if one.get("http-equiv")]
    style = policy_hash(tree.findtext(".//style"))
    assert policy.startswith(f"default-src 'none'; style-src '{style}';") and "unsafe-inline" not in policy
    assert "script-src" not in policy
    assert not [one for one in tree.iter() if isinstance(one.tag, str) and one.get("style")]
    assert "url(" not in tree.findtext(".//style") and "@import" not in tree.findtext(".//style")


def test_what_stands_between_backticks_is_code_and_captions_are_not_cut():
    found = report(1, 1)
    found["vocabulary"]["aa"]["warning"] = "a higher `character_coverage` <b>has more"
    found["meanings"] = {**found["meanings"], "dropped": {**found["meanings"]["dropped"], "copy": "see `copies`"}}
    tree = parsed(page_of(found))
    assert "`" not in tree.find("body").text_content()
    codes = [one.text_content() for one in tree.iter("code")]
    assert codes.count("character_coverage") == 2 and "copies" in codes and "a higher" in tree.text_content()
    assert not tree.xpath("//*[@class='scroll']//caption")  # what scrolls cuts them


def test_links_of_the_page_have_their_ends_and_tables_their_heads():
    tree = parsed(page_of(report()))
    names = [one.get("id") for one in tree.iter() if one.get("id")]
    assert len(names) == len(set(names))
    assert {link.get("href")[1:] for link in tree.iter("a")} <= set(names)
    assert all(one.get("scope") for one in tree.iter("th"))
    assert all(one.get("tabindex") == "0" and one.get("role") == "region" for one in tree.find_class("scroll"))


def test_large_reports_are_small_pages():
    page = page_of(report(50, 300, samples=5, length=200))
    assert len(page.encode()) < 5_000_000
    tree = parsed(page)
    assert len(table_of(tree, "shares")) == 51
    assert sum(len(list(one.iter("tr"))) - 1 for one in tree.find_class("corpora")) == 400


def test_samples_are_of_every_rule_and_pair_as_far_as_there_is_room():
    found = report(4, 8, samples=5, length=60)
    whole = choose(found)
    assert set(whole.dropped) == set(RULES) and all(len(pairs) == 4 for pairs in whole.dropped.values())
    places = [one.place for one in whole.dropped["copy"]["en-aa"]]
    assert places == ["corpus-0:1", "corpus-4:1", "corpus-0:2", "corpus-4:2", "corpus-0:3"]  # of both, in turn
    few = choose(found, budget=20_000)
    assert few.left_out > 0 and all(len(some) <= 2 for pairs in few.dropped.values() for some in pairs.values())
    shown = [one for pairs in (*few.dropped.values(), *few.bad.values()) for some in pairs.values() for one in some]
    assert sum(one.size for one in shown) <= 20_000
    assert set(few.dropped) == set(RULES)


def test_a_report_without_what_may_be_absent():
    found = report(2, 2)
    del found["meanings"], found["lengths"]
    for pair in found["pairs"].values():
        pair.update(tier="", tokens={})
    assert "Lengths of training" not in page_of(found) and "**no tier**" in markdown_of(found)
    nothing = {"command": "corpora", "recipe": "tiny", "corpora": {}, "pairs": {}, "vocabulary": {}}
    assert "Of 0 lines 0 (0.0%) were kept." in page_of(nothing)
    assert markdown_of(nothing).startswith("# What became")


@pytest.mark.parametrize("form", [page_of, markdown_of])
def test_the_same_report_gives_the_same_bytes(form):
    assert form(report()) == form(json.loads(json.dumps(report())))


def test_markdown_has_the_same_figures():
    text = unpadded(markdown_of(report(3, 4)))
    assert "| en-aa | 2,014 | 1,910 | 95% | 2 | 4 | 6 | 8 | 10 | 12 | 14 | 16 | 18 | 14 |" in text
    assert "| en-ac | low | 10,002 | 100 | 100 | 3 | 0.06% |" in text
    assert "| corpus-1 | en-ab | train | 1,000 | 3 encoding, 4 untranslated | 1 length, 2 empty," in text
    assert "- `−copy`: the target is the source." in text and "- filters.max\\_ratio: 3.0" in text


def test_hostile_names_are_text_in_markdown():
    text = markdown_of(hostile())
    assert "<script" not in text.replace("\\<", "") and "<img" not in text.replace("\\<", "")


def test_a_file_that_ends_too_early_is_named_however_little_is_known_to_be_lost():
    found = report(1, 1)
    next(iter(found["corpora"].values()))["bad"] = {"truncated": 1}
    assert any("could not be read to its end (truncated)" in sentence for sentence in findings(found))
