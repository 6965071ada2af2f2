"""Human translations from gettext catalogs (`.mo`) of folders and of installed packages, which are not imported.

A locale's name becomes a code without `-` and `.`, at which fairseq splits names; the first match counts:
- an encoding is removed: `zh_TW.Big5` -> `zh_TW`;
- a script, also one given as a modifier, replaces a region: `sr@latin`, `sr_Latn_RS` -> `sr_Latn`;
- other modifiers are kept: `ca@valencia` -> `ca_valencia`;
- Chinese is named by script: `zh`, `zh_CN`, `zh_SG` -> `zh_Hans`, `zh_TW` -> `zh_Hant`;
- a language's main region is removed: `de_DE` -> `de`, `hi_IN` -> `hi`; other regions are kept: `pt_BR`, `es_AR`;
- `no` is `nb`, `iw` is `he`, `in` is `id`.
"""

import importlib.util
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from fairseq_mtmoe.data.corpora.blocks import Fault
from fairseq_mtmoe.data.corpora.cleaning.characters import LENGTH_PADDING, WIDE
from fairseq_mtmoe.data.corpora.readers.messages import load_catalog, messages_of
from fairseq_mtmoe.errors import UserError, shortened
from fairseq_mtmoe.io.normalisation import normal_form, normalise

SentencePair = tuple[str, str]  # (source sentence, target sentence), each one normalised line

MAX_CHARACTERS = 400  # longer messages are mail templates and licences, which would dominate padding
MAX_LENGTH_RATIO = 3.0

# Reasons for dropping a pair, with their explanations in reports.
DROP_REASONS = {
    "empty": "no translation, or no letter in the message or its translation",
    "copy": "the translation equals the message",
    "placeholders": "placeholders differ between message and translation",
    "length": f"longer than {MAX_CHARACTERS} characters, or one side over {MAX_LENGTH_RATIO:g} times the other",
    "duplicate": "the same message and translation again",
    "unequal": "lines of one file after the end of the other",
    "reserved": "another wording or translation of a validation or test message",
}

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
_NO_WORD = re.compile(r"[\W_]+")
_PERCENT = re.compile(
    r"""
    %(?P<name>\(\w+\))?         # %(name)s
    (?:\d++\$)?                 # %1$s: a position, which only says that the order has changed
    [#0+-]*+(?:\*|\d++)?(?:\.(?:\*|\d++))?  # possessive: a million zeros are not taken apart in every way
    (?:hh|h|ll|l|z|j|t|L)?      # C's lengths
    (?P<kind>[diouxXeEfFgGcrsap])(?(name)|(?!\w))  # %(count)dmin, but not 50%discount
    """,
    re.VERBOSE | re.ASCII,
)
_BRACES = re.compile(r"(?<!\{)\{[\w.\[\]]*(?:![rsa])?(?::[^{}]*)?\}(?!\})")


@dataclass(frozen=True)
class Catalog:
    """A `.mo` file; `name` is its path below its source, the same on every machine."""

    path: Path
    name: str
    lang: str
    source: str


class CatalogText(NamedTuple):
    """Cleaned content of a catalog."""

    pairs: list[SentencePair]  # messages with translations, in order
    dropped: Counter[str]  # number of others by reason
    joined: list[tuple[str, str]]  # keys of a singular and its plural, which are split as one message


def find_catalogs(packages: Sequence[str], folders: Sequence[Path], langs: Sequence[str] = ()) -> list[Catalog]:
    """Return all `<locale>/LC_MESSAGES/*.mo` of packages and folders in a fixed order, or only those of `langs`."""
    found: list[Catalog] = []
    for source, root in [*map(_package_source, packages), *((str(folder), folder) for folder in folders)]:
        if not root.is_dir():
            raise UserError(f"`--folder` must be a folder of gettext catalogs, but `{root}` is no folder.")
        paths = sorted(root.rglob("LC_MESSAGES/*.mo"))
        langs_of = [(path, language_code(path.parent.parent.name) or "en") for path in paths]
        catalogs = [
            Catalog(path, path.relative_to(root).as_posix(), lang, source)
            for path, lang in langs_of
            if lang.split("_")[0] != "en"  # the language of the messages themselves
        ]
        if not catalogs:
            raise UserError(f"`{source}` must have catalogs in <locale>/LC_MESSAGES/*.mo, but has none.")
        found += catalogs
    present = {catalog.lang for catalog in found}
    for lang in langs:
        if lang not in present:
            raise UserError(f"`--langs` must be among {shortened(sorted(present), lang)}, but has {lang!r}.")
    return [catalog for catalog in found if not langs or catalog.lang in langs]


def _package_source(name: str) -> tuple[str, Path]:
    """Return an installed package's name with version, and its folder, without importing it."""
    try:
        spec = importlib.util.find_spec(name.lower()) if name.isidentifier() else None
    except ValueError:  # a module without a spec, such as __main__
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"`--packages` must be installed packages, but {name!r} is not; try `pip install {name}`.")
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        version = ""
    return f"{name.lower()} {version}".strip(), Path(next(iter(spec.submodule_search_locations)))


def language_code(locale: str) -> str | None:
    """Return a locale name's code by the module's rules; None for other names."""
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


def read_catalog(path: Path) -> CatalogText | None:
    """Read and clean a catalog; None if it is damaged."""
    try:
        catalog = load_catalog(path, is_compiled=True)
    except (Fault, UserError):
        return None
    found = CatalogText([], Counter(), [])
    for entry in catalog:
        messages = [(normalise(source), normalise(target)) for source, target in messages_of(entry, catalog)]
        if entry.msgid_plural:
            first, second = (message_key(source) for source, _ in messages)
            found.joined.append((first, second))
        for source, target in messages if not entry.msgid_plural or entry.msgstr_plural else ():
            reason = why_dropped(source, target)
            if reason is None:
                found.pairs.append((source, target))
            else:
                found.dropped[reason] += 1
    return found


def message_key(text: str) -> str:
    """Return a message's key for splitting: letters and digits, without case, marks and punctuation."""
    folded = normal_form("NFKC", text).casefold()
    return _NO_WORD.sub(" ", folded).strip()


def why_dropped(source: str, target: str) -> str | None:
    """Return the reason (a key of `DROP_REASONS`) to drop a pair of normalised sentences; None to keep it."""
    source_key, target_key = message_key(source), message_key(target)
    if not all(any(map(str.isalpha, key)) for key in (source_key, target_key)):
        return "empty"
    if source_key == target_key:
        return "copy"
    if placeholders(source) != placeholders(target):
        return "placeholders"
    shorter, longer = sorted(map(_width, (source, target)))
    if max(len(source), len(target)) > MAX_CHARACTERS or longer / shorter > MAX_LENGTH_RATIO:
        return "length"
    return None


def placeholders(text: str) -> Counter[str]:
    """Count placeholders (`%s`, `%(name)s`, `{0}`, `{name!r:>10}`); `%1$s` counts as `%s`, widths are ignored."""
    percent = (f"%{match['name'] or ''}{match['kind']}" for match in _PERCENT.finditer(text.replace("%%", "")))
    return Counter([*percent, *_BRACES.findall(text)])


def _width(text: str) -> int:
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + (WIDE - 1) * wide + LENGTH_PADDING
