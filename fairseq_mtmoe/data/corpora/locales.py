"""From locale names of gettext catalogs to language codes that are safe in fairseq's file names.

fairseq takes names such as `train.en-de.de.idx` apart at `-` and `.`, so neither may occur in a code.
The rule, first match wins:

- an encoding goes: `zh_TW.Big5` is read as `zh_TW`;
- a script, also one given as a modifier, replaces a region: `sr@latin`, `sr_Latn_RS` -> `sr_Latn`;
- other modifiers stay: `ca@valencia` -> `ca_valencia`;
- Chinese is named by script: `zh`, `zh_CN`, `zh_SG` -> `zh_Hans`, `zh_TW` -> `zh_Hant`;
- a language's main region goes: `de_DE` -> `de`, `hi_IN` -> `hi`; other regions stay: `pt_BR`, `es_AR`;
- `no` is `nb`, `iw` is `he`, `in` is `id`.
"""

from __future__ import annotations

import re

_LOCALE = re.compile(
    r"(?P<lang>[A-Za-z]{2,3})(?:[_-](?P<script>[A-Z][a-z]{3}))?(?:[_-](?P<region>[A-Z]{2}|\d{3}))?"
    r"(?:\.[\w-]+)?(?:@(?P<modifier>\w+))?"
)
_RENAMED = {"no": "nb", "iw": "he", "in": "id"}
_SCRIPTS = {"latin": "Latn", "cyrillic": "Cyrl", "devanagari": "Deva", "arabic": "Arab"}
_CHINESE = {None: "Hans", "CN": "Hans", "SG": "Hans", "TW": "Hant"}
# By hand, not CLDR's likely regions (babel, langcodes), for which plain `pt` is Brazil's: codes are in file names and
# in models' lists of languages, and must stay when CLDR changes.
_MAIN_REGION = {
    **{"af": "ZA", "ar": "SA", "be": "BY", "bn": "BD", "ca": "ES", "cs": "CZ", "cy": "GB", "da": "DK", "el": "GR"},
    **{"et": "EE", "eu": "ES", "fa": "IR", "ga": "IE", "gl": "ES", "gu": "IN", "he": "IL", "hi": "IN", "hy": "AM"},
    **{"ja": "JP", "ka": "GE", "kk": "KZ", "km": "KH", "kn": "IN", "ko": "KR", "ml": "IN", "mr": "IN", "ms": "MY"},
    **{"my": "MM", "nb": "NO", "ne": "NP", "nn": "NO", "pa": "IN", "ps": "AF", "si": "LK", "sl": "SI", "sq": "AL"},
    **{"sr": "RS", "sv": "SE", "sw": "KE", "ta": "IN", "te": "IN", "uk": "UA", "ur": "PK", "vi": "VN", "xh": "ZA"},
}


def language_code(locale: str) -> str | None:
    """The code of a locale name, or None if it is not one; see the module's docstring for the rule."""
    match = _LOCALE.fullmatch(locale)
    if match is None:
        return None
    lang = _RENAMED.get(match["lang"].lower(), match["lang"].lower())
    script, region, modifier = match["script"], match["region"], match["modifier"]
    if modifier in _SCRIPTS:
        script, modifier = _SCRIPTS[modifier], None
    if lang == "zh" and script is None and region in _CHINESE:
        script = _CHINESE[region]
    if script is not None or region == _MAIN_REGION.get(lang, lang.upper()):
        region = None
    return "_".join(part for part in (lang, script, region, modifier) if part)


def is_english(lang: str) -> bool:
    """Whether a code is English or a variety of it: the language of the messages themselves."""
    return lang.split("_")[0] == "en"
