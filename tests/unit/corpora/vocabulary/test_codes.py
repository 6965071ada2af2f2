"""Languages of corpora are found among a model's, whatever it calls them."""

import pytest

from fairseq_mtmoe.corpora.vocabulary.codes import codes_of_model
from tests.helpers.refused import refused

NLLB = ("eng_Latn", "swh_Latn", "arb_Arab", "arz_Arab", "zho_Hans", "zho_Hant", "yue_Hant", "kas_Arab", "lug_Latn")


@pytest.mark.parametrize(("lang", "known", "code"), [
    ("en", NLLB, "eng_Latn"), ("sw", NLLB, "swh_Latn"), ("ar", NLLB, "arb_Arab"), ("zh", NLLB, "zho_Hans"),
    ("zh_TW", NLLB, "zho_Hant"), ("swh_Latn", NLLB, "swh_Latn"), ("en", ("en_XX", "sw_KE"), "en_XX"),
    ("swh", ("en_XX", "sw_KE"), "sw_KE"), ("eng", ("en", "ns"), "en"), ("ns", ("en", "ns"), "ns"),
    ("fr", ("fra", "deu"), "fra"),
])  # fmt: skip
def test_a_language_is_a_users_choice_or_the_one_of_the_model_in_its_script(lang, known, code):
    assert codes_of_model([lang], known, {}) == {lang: code}
    assert codes_of_model([lang], known, {lang: known[1]}) == {lang: known[1]}


@pytest.mark.parametrize(("langs", "given", "named"), [
    (["lg_Arab"], {}, "lug_Latn"),  # the language in another script
    (["lga"], {}, "extend"),
    (["en"], {"en": "eng_Lat"}, "eng_Latn"),
    (["en", "eng"], {}, "en and eng"),  # one language, twice
])  # fmt: skip
def test_what_the_model_does_not_have_is_one_sentence_with_the_nearest(langs, given, named):
    with refused("--codes") as caught:
        codes_of_model(langs, NLLB, given)
    assert named in str(caught.value)
