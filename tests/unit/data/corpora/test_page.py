"""The page of a report: the report's figures, and nothing of a corpus but its text."""

import shlex

from fairseq import options
from lxml.html import document_fromstring as parsed

from fairseq_mtmoe import register
from fairseq_mtmoe.data.corpora.findings import findings, training_command
from fairseq_mtmoe.data.corpora.page import html_of, markdown_of
from fairseq_mtmoe.errors import visible
from tests.helpers.corpus_reports import HOSTILE, RULES, hostile, report
from tests.helpers.tables import unpadded


def table_of(tree, title):
    """The cells of the table of a section."""
    (section,) = [one for one in tree.iter("section") if one.findtext(".//h2") == title]
    return [[cell.text_content().strip() for cell in row.iter("th", "td")] for row in section.iter("tr")]


def structure(page):
    """Every element with its attributes, but for what these say of texts."""
    return [(one.tag, one.keys()) for one in parsed(page).iter() if isinstance(one.tag, str)]


def test_the_figures_are_the_reports():
    found = report(3, 4)
    tree, text = parsed(html_of(found)), unpadded(markdown_of(found))
    # en-aa has two corpora of 1000 pairs, of which 1 + 2 + … + 9 are left out, and 7 lines that cannot be read
    row = ["en-aa", "2,014", "14", *(str(2 * number) for number in range(1, 10)), "0", "1,910", "95%"]
    flows = table_of(tree, "Raw training text: lines kept and left out")
    assert row in flows and f"| {' | '.join(row)} |" in text
    assert flows[-1][:3] == ["all", "4,028", "28"] and "| **all** |" in text
    pairs = table_of(tree, "Language pairs")
    assert pairs[1] == ["en-ac", "low", "1", "10,002", "100", "100", "3", "0.06%"]
    assert pairs[-1] == ["total", "", "3", "11,103", "300", "300", "3", "0.03%"]
    assert table_of(tree, "Vocabulary")[3] == ["ab", "1.24", "3.50", "0.020%", ""]
    corpora = table_of(tree, "Corpora")
    assert corpora[1][:6] == ["corpus-0", "en-aa", "train", "", "1,000", "955"]
    assert corpora[1][6].startswith("3 encoding, 4 untranslated, 1 length, 2 empty,")
    found["corpora"]["corpus-0"]["weight"] = 21
    assert table_of(parsed(html_of(found)), "Corpora")[1][3] == "× 21"
    assert f"`−copy`: {RULES['copy']}." in text and "- filters.max\\_ratio: 3.0" in text


def test_pairs_drawn_for_validation_are_neither_kept_nor_lost():
    found = report(1, 1)
    corpus = found["corpora"]["corpus-0"]
    corpus.update(drawn=600, kept=355)  # and 45 that rules left out
    assert not [sentence for sentence in findings(found) if "were kept" in sentence]
    flows = table_of(parsed(html_of(found)), "Raw training text: lines kept and left out")
    assert flows[1][-3:] == ["600", "355", "87%"]  # of 407
    corpus.update(drawn=500, kept=155)
    assert "corpus-0 (en-aa): 31.0% of its pairs were kept; the rule " in "".join(findings(found))


def test_what_a_reader_should_look_at_first():
    found = report(2, 2)
    assert findings(found) == ["Vocabulary, aa: a word is cut into too many pieces"]
    found["fewer_pieces"] = 900
    found["pairs"]["en-aa"].update(test=0)
    found["pairs"]["en-ab"]["tokens"]["test"]["ab"]["unknown"] = 600
    found["corpora"]["corpus-0"].update(bad={"unpaired": 3})
    found["corpora"]["corpus-1"].update(bad={"encoding": 100})
    found["corpora"]["test-aa"].update(bad={"untranslated": 1200})
    said = "\n".join(findings(found))
    for words in (
        "900 pieces, as the text allows no more",
        "en-aa has no sentence pair for test.",
        "en-ab: 6.0% of the test tokens are not in the vocabulary",
        "corpus-0 (en-aa): one side has 3 segments that the other lacks.",
        "test-aa (en-aa): 1,200 entries are left out, as they have no text in one of the two languages.",
        "corpus-1 (en-ab): 9.1% of its lines could not be read (encoding 100).",
    ):
        assert words in said
    page = html_of(found)
    assert all(visible(sentence) in page for sentence in findings(found)) and len(findings(found)) == 7


def test_it_is_said_how_to_train_on_it():
    found = report(3, 4)
    command = training_command(found)
    assert f"```\n{command}\n```" in markdown_of(found)
    assert visible(command).splitlines()[0] in parsed(html_of(found)).text_content()
    assert "DATA/shard0:DATA/shard1:DATA/shard2" in html_of(found) and "DATA/shard2`" in markdown_of(found)
    mbart = {**found, "recipe": {"vocabulary": {"language_tokens": "mbart"}}}
    words = shlex.split(training_command(mbart, "'my data'").replace("\\\n", " "))
    assert words[:2] == ["fairseq-train", "my data"] and "my data/lang_pairs.txt" in words
    register()
    parser = options.get_training_parser(default_task="translation_heated")
    args = options.parse_args_and_arch(parser, words[1:])
    assert args.lang_tok_style == "mbart" and args.save_dir == "RUN" and args.encoder_langtok == "tgt"


def test_hostile_text_is_text():
    page = html_of(hostile())
    page.encode()  # no lone surrogate is left
    assert structure(page) == structure(html_of(hostile([f"x{number}" for number in range(len(HOSTILE))])))
    assert visible(HOSTILE[0]) in [cell.text_content() for cell in parsed(page).iter("td")]
    text = markdown_of(hostile()).replace("\\<", "")
    assert "<script" not in text and "<img" not in text


def test_samples_are_of_every_rule_and_of_all_corpora_in_turn():
    found = report(4, 8, samples=5, length=60)
    tree = parsed(html_of(found))
    samples = table_of(tree, "Samples: length")
    assert [row[0] for row in samples[1:6]] == ["corpus-0:1", "corpus-4:1", "corpus-0:2", "corpus-4:2", "corpus-0:3"]
    assert len(samples) == 1 + 4 * 5 and "Unreadable lines: encoding" in tree.text_content()
