import json

import lxml.html
import pytest
from jinja2 import UndefinedError

from fairseq_mtmoe.errors import visible
from fairseq_mtmoe.io.pages import Section, templates, write_page
from fairseq_mtmoe.io.tables import Table, markdown_table


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.j2").write_text("<p title='{{ text }}'>{{ text }} {{ text|visible }} {{ 12345|n }}</p>")
    (tmp_path / "b.j2").write_text("{% include 'basics.css' %}{{ forgotten }}")
    return tmp_path


def test_whatever_comes_in_is_escaped(folder):
    shown = templates(folder).get_template("a.j2").render(text="'<b>&\u202e")
    escaped = "&#39;&lt;b&gt;&amp;"
    assert shown == f"<p title='{escaped}\u202e'>{escaped}\u202e {escaped}⟨U+202E⟩ 12,345</p>"


def test_what_nobody_gave_is_an_error(folder):
    with pytest.raises(UndefinedError, match="forgotten"):
        templates(folder).get_template("b.j2").render()
    assert "color-scheme" in templates(folder).get_template("b.j2").render(forgotten="")


ATTACK = "</script><script>window.owned = 1</script>\u202e\u2028"


def test_a_page_shows_texts_points_tables_and_charts_as_they_are(tmp_path):
    chart = {"mark": "point", "data": {"values": [{"x": ATTACK}]}}
    table = Table(["name", "size"], [[ATTACK, "1"]], [["all", "2"]])
    sections = [Section("First", ["Use `--this`.", [ATTACK, "b"]]), Section("Second", [table, chart], folded=True)]
    write_page(tmp_path / "page.html", ATTACK, sections, about="Made of `a`.", refresh=30.4)
    page = lxml.html.fromstring((tmp_path / "page.html").read_text())
    assert [one.text_content() for one in page.xpath("//section//h2")] == ["First", "Second"]
    assert page.xpath("//section/p/code/text()") == ["--this"] and len(page.xpath("//section/ul/li")) == 2
    cells = [[cell.text_content() for cell in row] for row in page.xpath("//section//tr")]
    assert cells == [["name", "size"], [visible(ATTACK), "1"], ["all", "2"]]
    (written,) = page.xpath("//figure/following-sibling::script/text()")
    assert json.loads(written) == chart and "owned" not in "".join(page.xpath("//script[not(@type)]/text()"))
    assert page.xpath("//meta[@http-equiv='refresh']/@content") == ["30"] and page.xpath("//section[2]/details")


def test_a_page_without_charts_has_no_script(tmp_path):
    write_page(tmp_path / "page.html", "Data", [Section("First", ["Text."])])
    text = (tmp_path / "page.html").read_text()
    assert "<script" not in text and "script-src 'none'" in text and "refresh" not in text


def test_what_cannot_be_seen_is_spelled_and_what_is_spelled_stays():
    assert visible("a\u2028b\ud800") == "a⟨U+2028⟩b⟨U+D800⟩"
    assert visible(visible("\x00")) == "⟨U+0000⟩"
    assert visible("می\u200cخواهم") == "می\u200cخواهم"


def test_cells_of_a_table_stand_as_they_are_and_numbers_to_the_right():
    columns, rows = ["pair", "BLEU", "note"], [["en-de", "08.50", "a|b"], ["en-fr", "1e3", " "]]
    lines = markdown_table(columns, rows, (0, 2)).splitlines()
    cells = [[cell.strip() for cell in line.replace("\\|", "¦").strip("|").split("|")] for line in lines]
    assert cells[0] == columns and [cell.endswith(":") for cell in cells[1]] == [False, True, False]
    assert cells[2:] == [["en-de", "08.50", "a¦b"], ["en-fr", "1e3", ""]]
