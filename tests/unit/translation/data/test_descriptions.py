"""Language pairs in a sentence."""

from fairseq.data import Dictionary

from fairseq_mtmoe.translation.data.descriptions import described_languages, description_of_pair, description_tokens
from fairseq_mtmoe.translation.data.languages import MBART50
from fairseq_mtmoe.translation.data.vocabulary import Side
from tests.helpers.piece_models import pieces_of, trained_pieces
from tests.helpers.refused import refused


def test_a_pair_is_described_by_its_languages_which_must_be_known():
    assert description_of_pair("en-be") == (
        "Given a sentence in English, a West Germanic language, in the Latin script, translate it into Belarusian, an "
        "East Slavic language close to Russian and Ukrainian, in the Cyrillic script."
    )
    assert "into Chinese, a Sinitic language, in traditional" in description_of_pair("de-zh_Hant")
    assert description_of_pair("eng_Latn-swh_Latn") == description_of_pair("en-sw")  # as pretrained models call them
    with refused("--description"):
        description_of_pair("en-qq")


def test_the_table_has_the_papers_languages_and_each_is_told_from_the_others():
    assert {code for code in MBART50 if code.split("_")[0] not in described_languages()} == set()
    described = [text for code, text in described_languages().items() if code != "zh_TW"]
    assert len(set(described)) == len(described)


def test_tokens_are_those_of_the_datas_sentencepiece(tmp_path):
    text = "Given a sentence, translate it."
    content = trained_pieces([text] * 50)
    (tmp_path / "spm.model").write_bytes(content)
    side = Side(tuple(pieces_of(content)), content)
    dictionary = side.dictionary()
    tokens = description_tokens(text, dictionary, str(tmp_path))
    assert [dictionary[token] for token in tokens] == side.processor.encode(text, out_type=str) and len(tokens) > 5


def test_without_a_model_they_are_the_words_as_they_are(tmp_path):
    dictionary = Dictionary()
    known = dictionary.add_symbol("▁trans"), dictionary.add_symbol("late")
    assert description_tokens("▁trans late it", dictionary, str(tmp_path)) == [*known, dictionary.unk()]
    for text in ("nothing known", " "):
        with refused("--description"):
            description_tokens(text, dictionary, str(tmp_path))
