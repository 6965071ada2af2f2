from fairseq_mtmoe.io.markdown import markdown_table


def test_cells_stand_as_they_are_and_numbers_to_the_right():
    lines = markdown_table(
        ["pair", "BLEU", "note"], [["en-de", "08.50", "a|b"], ["en-fr", "1e3", " "]], (0, 2)
    ).splitlines()
    cells = [[cell.strip() for cell in line.replace("\\|", "¦").strip("|").split("|")] for line in lines]
    assert cells[0] == ["pair", "BLEU", "note"]
    assert [cell.endswith(":") for cell in cells[1]] == [False, True, False]
    assert cells[2:] == [["en-de", "08.50", "a¦b"], ["en-fr", "1e3", ""]]
