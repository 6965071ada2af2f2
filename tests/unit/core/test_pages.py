import json

import lxml.html
import pytest
from jinja2 import UndefinedError

from fairseq_mtmoe.core.errors import visible
from fairseq_mtmoe.core.pages import Section, page_of, templates
from fairseq_mtmoe.core.tables import Table


def test_templates_escape_values_and_refuse_missing_ones(tmp_path):
    (tmp_path / "a.j2").write_text("<p title='{{ text }}'>{{ text|visible }} {{ 12345|n }}</p>")
    template = templates(tmp_path).get_template("a.j2")
    escaped = "&#39;&lt;b&gt;&amp;"
    assert template.render(text="'<b>&\u202e").startswith(f"<p title='{escaped}\u202e'>{escaped}⟨U+202E⟩ 12,345</p>")
    with pytest.raises(UndefinedError, match="text"):
        template.render()


ATTACK = "</script><script>window.owned = 1</script>\u202e\u2028"


def test_a_page_shows_texts_points_tables_and_charts_as_they_are():
    chart = {"mark": "point", "data": {"values": [{"x": ATTACK}]}}
    table = Table(["name", "size"], [[ATTACK, "1"]], [["all", "2"]])
    sections = [Section("First", ["Use `--this`.", [ATTACK, "b"]]), Section("Second", [table, chart], folded=True)]
    page = lxml.html.fromstring(page_of(ATTACK, sections, about="Made of `a`.", refresh=30.4))
    assert [one.text_content() for one in page.xpath("//section//h2")] == ["First", "Second"]
    assert page.xpath("//section/p/code/text()") == ["--this"] and len(page.xpath("//section/ul/li")) == 2
    cells = [[cell.text_content() for cell in row] for row in page.xpath("//section//tr")]
    assert cells == [["name", "size"], [visible(ATTACK), "1"], ["all", "2"]]
    (written,) = page.xpath("//figure/following-sibling::script/text()")
    assert json.loads(written) == chart and "owned" not in "".join(page.xpath("//script[not(@type)]/text()"))
    assert page.xpath("//meta[@http-equiv='refresh']/@content") == ["30"] and page.xpath("//section[2]/details")
    text = page_of("Without charts", [Section("First", ["Text."])])
    assert "<script" not in text and "script-src 'none'" in text and "refresh" not in text


def test_invisible_characters_are_spelled():
    assert visible(visible("a\u2028b\ud800\x00")) == "a⟨U+2028⟩b⟨U+D800⟩⟨U+0000⟩"
    assert visible("می\u200cخواهم") == "می\u200cخواهم"
