"""The text of the study `languages`: no test line is nearly a training line."""

import languages_text


def test_a_line_that_shares_four_fifths_of_its_grams_with_one_training_line_is_a_near_copy():
    train = ["I have never been to Paris.", "Where is the station?"]
    lines = [
        "I have  never been to paris.",  # the same but for spaces and case
        "I have never been to Perth.",  # 18 of 23 5-grams
        "I have never been to Paris!",  # 22 of 23
        "I have never been. Where is the station?",  # its 5-grams lie in two lines
        "Yes.",
    ]
    assert languages_text.near_copies(lines, train) == [True, False, True, False, False]


def test_a_near_copy_of_either_side_goes():
    train = [("Where is the station?", "Wo ist der Bahnhof?")]
    pairs = [("Where's the railway station?", "Wo ist der Bahnhof?"), ("Where is he?", "Wo ist er nur?")]
    assert languages_text.without_near_copies(pairs, train) == pairs[1:]
