"""Language codes in recipes: plain ones, such as `de`, and mBART's, such as `de_DE`."""

import re
from collections.abc import Callable
from enum import Enum

CODE = re.compile(r"[a-z]{2,3}(_[A-Za-z0-9]+)*")  # in either spelling, or another, such as `pt_BR`
OPEN = ("xx", "yy")  # any language, in a pair


class Spelling(Enum):
    """Spelling of language codes in a data directory."""

    plain = "plain"  # de
    mbart = "mbart"  # de_DE


# The 52 codes of mBART-50 ("Multilingual Translation with Extensible Multilingual Pretraining and Finetuning", Tang et
# al. 2020), of which ML-50 has data for all but two (sw_KE, tl_XX).
MBART = (
    *("af_ZA", "ar_AR", "az_AZ", "bn_IN", "cs_CZ", "de_DE", "en_XX", "es_XX", "et_EE", "fa_IR", "fi_FI", "fr_XX"),
    *("gl_ES", "gu_IN", "he_IL", "hi_IN", "hr_HR", "id_ID", "it_IT", "ja_XX", "ka_GE", "kk_KZ", "km_KH", "ko_KR"),
    *("lt_LT", "lv_LV", "mk_MK", "ml_IN", "mn_MN", "mr_IN", "my_MM", "ne_NP", "nl_XX", "pl_PL", "ps_AF", "pt_XX"),
    *("ro_RO", "ru_RU", "si_LK", "sl_SI", "sv_SE", "sw_KE", "ta_IN", "te_IN", "th_TH", "tl_XX", "tr_TR", "uk_UA"),
    *("ur_PK", "vi_VN", "xh_ZA", "zh_CN"),
)
_MBART_OF = {code.split("_")[0]: code for code in MBART}
_PLAIN_OF = {code: plain for plain, code in _MBART_OF.items()}


def plain_code(code: str) -> str:
    """Return `de` for `de_DE` and for `de`; codes that mBART lacks are returned unchanged."""
    return _PLAIN_OF.get(code, code)


def mbart_code(code: str) -> str | None:
    """Return `de_DE` for `de` and for `de_DE`; None for languages that mBART lacks."""
    return code if code in _PLAIN_OF else _MBART_OF.get(code)


def each_code(pair: str, change: Callable[[str], str]) -> str:
    """Return a pair with both codes changed by a function."""
    return "-".join(map(change, pair.split("-")))


def reversed_pair(pair: str) -> str:
    """Return `de-en` for `en-de`."""
    return "-".join(reversed(pair.split("-")))


def is_pair(pair: str) -> bool:
    """Return whether a text is a pair of two different languages."""
    codes = pair.split("-")
    is_two = len(codes) == 2 and all(map(CODE.fullmatch, codes))
    return is_two and plain_code(codes[0]) != plain_code(codes[1])


def matches(pair: str, pattern: str) -> bool:
    """Return whether a pair is the pattern's, in which `xx` and `yy` are any language."""
    sides = zip(pair.split("-"), pattern.split("-"), strict=True)
    return all(wanted in OPEN or lang == wanted for lang, wanted in sides)
