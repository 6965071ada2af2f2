"""Two spellings of a language's code: plain (`de`) and mBART's (`de_DE`), which names a region or `XX`.

A recipe may use either anywhere; in a data directory's file names and tokens stands the one that the recipe asks for.
"""

from __future__ import annotations

import re
from enum import Enum


class Spelling(Enum):
    """How codes of languages are written in a data directory."""

    plain = "de"
    mbart = "de_DE"


# The 52 codes of mBART-50 ("Multilingual Translation with Extensible Multilingual Pretraining and Finetuning", Tang et
# al. 2020), of which ML-50 has data for all but two (sw_KE, tl_XX). `locales.py` has another rule, for catalogs, in
# which Chinese is named by its script.
MBART = (
    *("af_ZA", "ar_AR", "az_AZ", "bn_IN", "cs_CZ", "de_DE", "en_XX", "es_XX", "et_EE", "fa_IR", "fi_FI", "fr_XX"),
    *("gl_ES", "gu_IN", "he_IL", "hi_IN", "hr_HR", "id_ID", "it_IT", "ja_XX", "ka_GE", "kk_KZ", "km_KH", "ko_KR"),
    *("lt_LT", "lv_LV", "mk_MK", "ml_IN", "mn_MN", "mr_IN", "my_MM", "ne_NP", "nl_XX", "pl_PL", "ps_AF", "pt_XX"),
    *("ro_RO", "ru_RU", "si_LK", "sl_SI", "sv_SE", "sw_KE", "ta_IN", "te_IN", "th_TH", "tl_XX", "tr_TR", "uk_UA"),
    *("ur_PK", "vi_VN", "xh_ZA", "zh_CN"),
)
_MBART_OF = {code.split("_")[0]: code for code in MBART}
_PLAIN_OF = {code: plain for plain, code in _MBART_OF.items()}

CODE = re.compile(r"[a-z]{2,3}(_[A-Za-z0-9]+)*")
"""A code in either spelling, or another that is safe in fairseq's file names, such as `pt_BR` or `zh_Hant`."""


def plain_code(code: str) -> str:
    """`de` for `de_DE` and for `de`; a code that mBART does not have is as it was."""
    return _PLAIN_OF.get(code, code)


def mbart_code(code: str) -> str | None:
    """`de_DE` for `de` and for `de_DE`; None for a language that mBART does not have."""
    return code if code in _PLAIN_OF else _MBART_OF.get(code)


def spelled(code: str, spelling: Spelling) -> str:
    """A code in the spelling that a recipe asks for; one that mBART does not have as it was."""
    return plain_code(code) if spelling is Spelling.plain else mbart_code(code) or code


def spelled_pair(pair: str, spelling: Spelling) -> str:
    """`en_XX-de_DE` for `en-de`, and the other way round."""
    return "-".join(spelled(code, spelling) for code in pair.split("-"))
