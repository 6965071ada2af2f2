"""One table in three forms: every cell is in each, and its signs stand for themselves."""

from fairseq_mtmoe.analysis.tables import Table

TABLE = Table(
    ["pair", "tier", "BLEU"], [["en-de_DE", "high", "26.50 ±0.41"], ["50% & #1", "", "−3"]], [["all", "", "11.75"]], 2
)


def latex_rows(text):
    return [
        [cell.strip() for cell in line.removesuffix(r"\\").split(" & ")] for line in text.splitlines() if " & " in line
    ]


def test_latex_has_every_cell_with_its_signs_escaped():
    text = TABLE.in_latex()
    assert latex_rows(text) == [
        ["pair", "tier", "BLEU"],
        [r"en-de\_DE", "high", r"26.50 $\pm$0.41"],
        [r"50\% \& \#1", "", "$-$3"],
        [r"\textbf{all}", "", r"\textbf{11.75}"],
    ]
    assert text.startswith("\\begin{tabular}{llr}\n\\toprule\n") and text.endswith("\\bottomrule\n\\end{tabular}\n")
    assert [column.justify for column in TABLE.on_screen().columns] == ["left", "left", "right"]
    assert text.count("\\midrule") == 2  # below the head, above what sums up


def test_a_cell_cannot_end_the_table():
    text = Table(["a"], [[r"\end{tabular}\input{x}~^<>"]]).in_latex()
    assert text.count("\\end{tabular}") == 1 and "\\input" not in text
