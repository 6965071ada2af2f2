"""Text is cut as the model has learned it: normalised by us, or by the SentencePiece model itself."""

import unicodedata

import sentencepiece

from fairseq_mtmoe.translation.data.vocabulary import Side
from tests.helpers.piece_models import pieces_of, trained_pieces

LINE = "le petit élève trouve le vieux train."
ODD = {
    "decomposed": unicodedata.normalize("NFD", LINE),
    "no-break space": LINE.replace("vieux train", "vieux\u00a0train"),
    "tab": LINE.replace("le vieux", "le\tvieux"),
    "soft hyphen": LINE.replace("trouve", "trou\u00adve"),
    "byte order mark": f"\ufeff{LINE}",
}


def side(rule: str) -> Side:
    model = trained_pieces([LINE] * 20, normalization_rule_name=rule)
    return Side(tuple(pieces_of(model)), model)


def test_a_model_of_prepare_gets_odd_spellings_as_prepare_writes_them():
    ours = side("identity")
    right = ours.processor.encode(LINE)
    for line in ODD.values():
        assert not ours.normalises and ours.encode([line, LINE]) == [right] * 2
        assert ours.processor.encode(line) != right  # by itself it does not know them


def test_a_model_that_normalises_text_itself_gets_it_as_it_is():
    theirs = side("nmt_nfkc")
    processor = sentencepiece.SentencePieceProcessor(model_proto=theirs.model)
    assert theirs.normalises and theirs.encode([*ODD.values(), "ﬁn"]) == processor.encode([*ODD.values(), "ﬁn"])
    assert theirs.encode([ODD["soft hyphen"]]) != theirs.encode([LINE])  # as `transformers` cuts it
