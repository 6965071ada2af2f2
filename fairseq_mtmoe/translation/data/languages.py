"""The table of languages: their names, descriptions and scripts."""

from functools import cache
from pathlib import Path
from typing import Any

# The codes of mBART-50 ("Multilingual Translation with Extensible Multilingual Pretraining and
# Finetuning", Tang et al. 2020), in the order of their ids; ML-50 has data for all but two (sw_KE,
# tl_XX).
_MBART50 = """
ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ
ko_KR lt_LT lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN af_ZA
az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL
ps_AF pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI
"""
MBART50 = tuple(_MBART50.split())


@cache
def languages() -> dict[str, dict[str, Any]]:
    """Return `languages.yaml`: each language's `name`, `about`, `scripts` and `names`."""
    import yaml  # on first use, so that a command's help does not import it

    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))
