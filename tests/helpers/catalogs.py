"""Small gettext catalogs, and the messages to fill them with."""

from pathlib import Path

import polib

GERMANIC = "nplurals=2; plural=(n != 1);"


def write_catalog(root: Path, locale: str, entries: list, plural_forms: str = GERMANIC, domain: str = "app") -> Path:
    """Compile `<root>/<locale>/LC_MESSAGES/<domain>.mo`; an entry is (message, translation) or polib's keywords."""
    catalog = polib.POFile()
    catalog.metadata = {"Content-Type": "text/plain; charset=UTF-8", "Plural-Forms": plural_forms}
    for entry in entries:
        fields = entry if isinstance(entry, dict) else {"msgid": entry[0], "msgstr": entry[1]}
        catalog.append(polib.POEntry(**fields))
    path = root / locale / "LC_MESSAGES" / f"{domain}.mo"
    path.parent.mkdir(parents=True, exist_ok=True)
    catalog.save_as_mofile(str(path))
    return path


NOUNS = ("file", "folder", "user", "page", "image", "letter", "table", "door", "window", "garden", "river", "house")
VERBS = ("open", "close", "delete", "copy", "move", "print", "send", "read", "find", "paint", "wash", "count")
MESSAGES = [f"{verb.title()} the {noun}" for verb in VERBS for noun in NOUNS]


def translate(message: str, lang: str) -> str:
    """A made-up language: words keep their places and are spelled backwards, with a sign of the language."""
    return " ".join(word[::-1] + lang[0] for word in message.lower().split())
