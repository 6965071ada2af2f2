"""Reader of gettext catalogs, as text (`.po`) and compiled (`.mo`), by polib."""

import gettext
import re
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import polib

from fairseq_mtmoe.core.errors import raise_invalid
from fairseq_mtmoe.core.files import read_bytes
from fairseq_mtmoe.corpora.blocks import Content, CorpusFiles, Segment, excerpt_of, unreadable
from fairseq_mtmoe.corpora.cleaning.languages import is_distant, is_same_language

# First bytes of compiled catalogs: little-endian, big-endian.
MAGIC = (b"\xde\x12\x04\x95", b"\x95\x04\x12\xde")


def message_segments(files: CorpusFiles) -> Iterator[Segment]:
    """Yield a catalog's messages, two for plurals, in its header's direction.

    Fuzzy and obsolete messages are left out.

    Raises `UserError` if its header says that it is in a third language.
    """
    (content,) = files.contents
    catalog = load_catalog(content, is_compiled=files.format == "mo")
    lang = catalog.metadata.get("Language", "")
    source_lang, target_lang = files.source_lang, files.target_lang
    if lang and is_distant(lang, source_lang) and is_distant(lang, target_lang):
        rule = f"{source_lang} or {target_lang}"
        raise_invalid(f"Language in the header of {files.paths[0]}", rule, lang)
    if lang:
        is_backwards = is_same_language(lang, source_lang)
        is_backwards &= not is_same_language(lang, target_lang)
    else:  # the messages are in English
        is_backwards = is_same_language("en", target_lang)
        is_backwards &= not is_same_language("en", source_lang)
    for entry in catalog:
        if entry.obsolete:
            continue
        is_fuzzy = "fuzzy" in getattr(entry, "flags", ())  # compiled entries have no flags
        for source, target in messages_of(entry, catalog):
            translation = None if is_fuzzy else target or None
            segment = Segment(source, translation, excerpt=excerpt_of(source))
            if is_backwards:
                segment = segment._replace(source=translation, target=source)
            yield segment


def load_catalog(file: Content, is_compiled: bool) -> polib.POFile | polib.MOFile:
    """Load a catalog without executing code.

    Raises `UserError` if the file is no catalog, or incomplete.
    """
    content = read_bytes(file.path)
    try:
        if not is_compiled and not content.startswith(MAGIC):
            return polib.pofile(str(file.path))
        _check_strings(content)
        return polib.mofile(str(file.path))
    except (OSError, ValueError, LookupError, struct.error) as error:
        raise unreadable(file.name, error) from error


def _check_strings(content: bytes) -> None:
    """Raise `ValueError` or `struct.error` if a compiled catalog is truncated.

    polib does not check this.
    """
    order = "<" if content.startswith(MAGIC[0]) else ">"
    count, *tables = struct.unpack_from(f"{order}3I", content, 8)
    if not count:
        return
    for table in tables:
        strings = np.frombuffer(content, f"{order}u4", 2 * count, table).reshape(count, 2)
        if strings.astype(np.int64).sum(1).max() >= len(content):
            raise ValueError("a string ends after the end of the file")


def messages_of(
    entry: polib.POEntry | polib.MOEntry, catalog: polib.POFile | polib.MOFile
) -> list[tuple[str, str]]:
    """Return a message with its translation.

    For plurals, return singular and plural with their forms.
    """
    if not entry.msgid_plural:
        return [(entry.msgid, entry.msgstr)]
    forms = entry.msgstr_plural
    header = catalog.metadata.get("Plural-Forms", "")
    singular, plural = singular_and_plural_form(header, len(forms))
    return [(entry.msgid, forms.get(singular, "")), (entry.msgid_plural, forms.get(plural, ""))]


def singular_and_plural_form(header: str, num_forms: int) -> tuple[int, int]:
    """Return the forms' indices for n = 1 and for most n up to 100.

    `Plural-Forms` tells them. Without it they are first and last.
    """
    expression = re.split(r"plural\s*=", header)[-1].partition(";")[0]
    with suppress(ValueError, ZeroDivisionError):
        form_of = gettext.c2py(expression.strip())  # allows only numbers, n and C's operators
        chosen = form_of(1), Counter(map(form_of, range(2, 101))).most_common(1)[0][0]
        if {*chosen} <= {*range(num_forms)}:
            return chosen
    return 0, num_forms - 1
