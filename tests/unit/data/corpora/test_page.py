"""The page of a report: the report's figures, and nothing of a corpus but its text."""

import shlex

from fairseq import options
from lxml.html import document_fromstring as parsed

from fairseq_mtmoe import register
from fairseq_mtmoe.data.corpora.page.figures import findings, training_command
from fairseq_mtmoe.data.corpora.page.pages import markdown_of, page_of
from fairseq_mtmoe.errors import visible
from fairseq_mtmoe.io.pages import policy_hash
from tests.helpers.corpus_reports import HOSTILE, RULES, hostile, report
from tests.helpers.tables import unpadded


def table_of(tree, name):
    """The cells of the table of a section."""
    [section] = [one for one in tree.iter("section") if one.get("aria-labelledby") == name]
    return [[cell.text_content().strip() for cell in row.iter("th", "td")] for row in section.iter("tr")]


def structure(page):
    """Every element with its attributes, but for what these say of texts."""
    return [(one.tag, one.keys()) for one in parsed(page).iter() if isinstance(one.tag, str)]


def test_the_figures_are_the_reports():
    found = report(3, 4)
    tree, text = parsed(page_of(found)), unpadded(markdown_of(found))
    # en-aa has two corpora of 1000 pairs, of which 1 + 2 + … + 9 are left out, and 7 lines that cannot be read
    row = ["en-aa", "2,014", "1,910", "95%", *(str(2 * number) for number in range(1, 10)), "14"]
    assert row in table_of(tree, "raw") and f"| {' | '.join(row)} |" in text
    assert table_of(tree, "raw")[-1][0] == "all" and table_of(tree, "raw")[-1][-1] == "28" and "| **all** |" in text
    assert table_of(tree, "pairs")[1] == ["en-ac", "low", "10,002", "100", "100", "3", "0.06%"]
    tiers = {"high": "100", "mid": "1,001", "low": "10,002"}
    rows = [[tier, "1 pair", size, "100", "100", "", ""] for tier, size in tiers.items()]
    assert table_of(tree, "pairs")[-3:] == rows
    assert table_of(tree, "vocabulary")[3] == ["ab", "1.24", "3.50", "0.020%", "99.950%", ""]
    assert table_of(tree, "corpora")[1][:5] == ["corpus-0", "en-aa", "train", "1,000", "3 encoding, 4 untranslated"]
    assert "| corpus-1 | en-ab | train | 1,000 | 3 encoding, 4 untranslated | 1 length, 2 empty," in text
    assert table_of(tree, "changes")[1] == ["en-aa", "10", "0", "0"]
    assert f"- `−copy`: {RULES['copy']}." in text and "- filters.max\\_ratio: 3.0" in text


def test_what_was_drawn_for_validation_is_neither_kept_nor_lost():
    found = report(1, 1)
    corpus = found["corpora"]["corpus-0"]
    corpus.update(drawn=600, kept=355)  # and 45 that rules left out
    assert not [sentence for sentence in findings(found) if "were kept" in sentence]
    assert table_of(parsed(page_of(found)), "raw")[1][:5] == ["en-aa", "1,007", "600", "355", "87%"]  # of 407
    assert "- `drawn`: taken for validation and test" in markdown_of(found)
    heads = [table_of(parsed(page_of(one)), "corpora")[0] for one in (found, report(1, 1))]
    assert [("drawn" in head, "kept" in head) for head in heads] == [(True, True), (False, True)]
    corpus.update(drawn=500, kept=155)
    assert "corpus-0 (en-aa): 31.0% of its pairs were kept; the rule " in "".join(findings(found))


def test_what_a_reader_should_look_at_first():
    found = report(2, 2)
    assert findings(found) == ["Vocabulary, aa: a word is cut into too many pieces"]
    found["fewer_pieces"] = 900
    found["pairs"]["en-aa"].update(test=0)
    found["pairs"]["en-ab"]["tokens"]["test"]["ab"]["unknown"] = 600
    found["corpora"]["corpus-0"].update(bad={"truncated": 1, "unpaired": 3})
    found["corpora"]["corpus-1"].update(bad={"encoding": 100})
    found["corpora"]["test-aa"].update(bad={"untranslated": 1200})
    said = "\n".join(findings(found))
    for words in (
        "900 pieces, as the text allows no more",
        "en-aa has no sentence pair for test.",
        "en-ab: 6.0% of the test tokens are not in the vocabulary",
        "corpus-0 (en-aa): a file could not be read to its end (truncated)",
        "corpus-0 (en-aa): one side has 3 segments that the other lacks.",
        "test-aa (en-aa): 1,200 entries are left out, as they have no text in one of the two languages.",
        "corpus-1 (en-ab): 9.1% of its lines could not be read (encoding 100).",
    ):
        assert words in said
    tree = parsed(page_of(found))
    assert len(tree.find_class("findings")[0].findall(".//li")) == len(findings(found)) == 8


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


def test_hostile_text_is_text_and_nothing_is_fetched_and_nothing_runs():
    page = page_of(hostile())
    tree = parsed(page)
    page.encode()  # no lone surrogate is left
    assert structure(page) == structure(page_of(hostile([f"x{number}" for number in range(len(HOSTILE))])))
    shown = [one.text_content() for one in tree.find_class("samples")[0].iter("p")]
    assert shown == [visible(text) for text in HOSTILE[:5] for _ in "st"]
    assert tree.findtext(".//title").endswith(HOSTILE[1])
    text = markdown_of(hostile()).replace("\\<", "")
    assert "<script" not in text and "<img" not in text
    names = [one.get("id") for one in tree.iter() if one.get("id")]
    assert len(names) == len(set(names)) and {link.get("href")[1:] for link in tree.iter("a")} <= set(names)
    assert not [one for one in tree.iter("*") if one.get("src") or one.get("style") or one.tag == "link"]
    assert not [name for one in tree.iter("*") for name in one.attrib if name.startswith("on")]
    (policy,) = [one.get("content") for one in tree.iter("meta") if one.get("http-equiv")]
    style = policy_hash(tree.findtext(".//style"))
    assert policy.startswith(f"default-src 'none'; style-src '{style}';") and "script-src" not in policy


def test_samples_are_of_every_rule_and_of_all_corpora_in_turn():
    found = report(4, 8, samples=5, length=60)
    tree = parsed(page_of(found))
    lines = [one.text_content() for one in tree.find_class("samples")[0].iter("small")]
    assert lines == ["corpus-0:1", "corpus-4:1", "corpus-0:2", "corpus-4:2", "corpus-0:3"]
    assert len(tree.find_class("samples")) == 4 * 9 + 4  # of nine rules and one reason
    assert len(page_of(report(50, 300, samples=5, length=200)).encode()) < 5_000_000
