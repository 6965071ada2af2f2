import pytest

from fairseq_mtmoe.data.corpora.locales import is_english, language_code


@pytest.mark.parametrize(
    "locale, code",
    [
        ("de", "de"),
        ("de_DE", "de"),
        ("de_AT", "de_AT"),
        ("pt", "pt"),
        ("pt_PT", "pt"),
        ("pt_BR", "pt_BR"),
        ("pt-BR", "pt_BR"),
        ("es_419", "es_419"),
        ("hi_IN", "hi"),
        ("nb_NO", "nb"),
        ("no", "nb"),
        ("iw", "he"),
        ("zh", "zh_Hans"),
        ("zh_CN", "zh_Hans"),
        ("zh_SG", "zh_Hans"),
        ("zh_Hans", "zh_Hans"),
        ("zh-Hans-CN", "zh_Hans"),
        ("zh_TW", "zh_Hant"),
        ("zh_TW.Big5", "zh_Hant"),
        ("zh_Hant", "zh_Hant"),
        ("zh_HK", "zh_HK"),
        ("sr@latin", "sr_Latn"),
        ("sr_RS@latin", "sr_Latn"),
        ("sr_Latn", "sr_Latn"),
        ("uz@cyrillic", "uz_Cyrl"),
        ("ca@valencia", "ca_valencia"),
        ("ckb", "ckb"),
        ("C", None),
        ("LC_MESSAGES", None),
        ("de_", None),
        ("", None),
    ],
)
def test_language_code(locale, code):
    assert language_code(locale) == code


def test_no_code_breaks_a_file_name():
    locales = ("zh-Hant-TW", "zh_TW.Big5", "ca@valencia", "pt-BR", "be@tarask", "sr-Cyrl-RS")
    codes = [language_code(locale) for locale in locales]
    assert None not in codes and not any("-" in code or "." in code for code in codes)


def test_english_is_the_source():
    assert [is_english(code) for code in ("en", "en_GB", "en_quot", "eng", "de")] == [True, True, True, False, False]
