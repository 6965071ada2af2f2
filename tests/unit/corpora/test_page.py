"""The page of a report: the report's figures, and nothing of a corpus but its text."""

import shlex

from fairseq import options
from lxml.html import document_fromstring as parsed

from fairseq_mtmoe import register
from fairseq_mtmoe.core.errors import visible
from fairseq_mtmoe.core.pages import markdown_of, page_of
from fairseq_mtmoe.corpora.findings import findings, fine_tuning_command
from fairseq_mtmoe.corpora.page import ABOUT, sections_of
from tests.helpers.corpus_reports import HOSTILE, hostile, report
from tests.helpers.tables import unpadded


def html_of(found):
    return page_of("Corpora", sections_of(found), ABOUT)


def table_of(tree, title):
    """The cells of the table of a section."""
    (section,) = [one for one in tree.iter("section") if one.findtext(".//h2") == title]
    return [[cell.text_content().strip() for cell in row.iter("th", "td")] for row in section.iter("tr")]


def structure(page):
    """Return every element's name with the names of its attributes."""
    return [(one.tag, one.keys()) for one in parsed(page).iter() if isinstance(one.tag, str)]


def test_the_figures_are_the_reports():
    found = report()
    found["corpora"]["corpus-0"].update(weight=21, drawn=600)
    tree, text = parsed(html_of(found)), unpadded(markdown_of("Corpora", sections_of(found), ABOUT))
    pairs = table_of(tree, "Language pairs")
    assert pairs[1] == ["en-ac", "low", "1", "10,002", "100", "100", "3", "0.06%"]
    assert pairs[-1] == ["total", "", "3", "11,103", "300", "300", "3", "0.03%"] and "| **total** |" in text
    assert table_of(tree, "Vocabulary")[3] == ["ac", "1.24", "3.50", "0.020%", ""]
    assert "The dictionary has 8,000 symbols, fairseq's own four included." in text
    corpora = table_of(tree, "Corpora")
    assert corpora[1][:7] == ["corpus-0", "en-aa", "train", "× 21", "1,000", "600", "955"]
    assert f"| {' | '.join(corpora[1][:7])} |" in text and "Samples" not in text


def test_what_a_reader_should_look_at_first():
    found = report()
    assert findings(found) == ["Vocabulary, aa: a word is cut into too many pieces"]
    found["pairs"]["en-aa"].update(test=0)
    found["pairs"]["en-ab"]["tokens"]["test"]["ab"]["unknown"] = 600
    found["corpora"]["corpus-0"].update(bad={"unpaired": 3})
    found["corpora"]["corpus-1"].update(bad={"encoding": 100})
    found["corpora"]["corpus-1"].update(drawn=500, kept=155)
    found["corpora"]["test-aa"].update(bad={"untranslated": 1200})
    assert findings(found) == [
        "Vocabulary, aa: a word is cut into too many pieces",
        "en-aa has no sentence pair for test.",
        "en-ab: 6.0% of the test tokens are not in the vocabulary, and no model can write them.",
        "corpus-0 (en-aa): one side has 3 segments that the other lacks.",
        "test-aa (en-aa): 1,200 entries are left out, as they have no text in one of the two languages.",
        "corpus-1 (en-ab): 9.1% of its lines could not be read (encoding 100).",
        "corpus-1 (en-ab): 31.0% of its pairs were kept; the rule near_duplicate left out most of the others (9).",
    ]
    page = html_of(found)
    assert all(visible(sentence) in page for sentence in findings(found))


def test_it_is_said_how_to_train_on_it():
    found = report()
    assert "DATA/shard0:DATA/shard1:DATA/shard2" in html_of(found)
    text = fine_tuning_command("'my data'", "MODEL").replace("$(mtmoe user-dir)", "fairseq_mtmoe")
    words = shlex.split(text.replace("\\\n", " "))
    assert words[:2] == ["fairseq-train", "my data"] and "my data/lang_pairs.txt" in words
    register()
    parser = options.get_training_parser(default_task="translation_heated")
    args = options.parse_args_and_arch(parser, words[1:])
    assert args.init_model == "MODEL" and args.save_dir == "RUN"


def test_hostile_text_is_text():
    page = html_of(hostile())
    page.encode()  # no lone surrogate is left
    assert structure(page) == structure(html_of(hostile([f"x{number}" for number in range(len(HOSTILE))])))
    samples = table_of(parsed(page), "Samples: length")
    assert len(samples) == 1 + 3 * 5 and samples[1][0] == visible(HOSTILE[0])
    text = markdown_of("Corpora", sections_of(hostile()), ABOUT).replace("\\<", "")
    assert "<script" not in text and "<img" not in text
