"""Small gettext catalogs and text folders to prepare data from."""

from pathlib import Path

import polib
import pytest

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


@pytest.fixture
def locale_folder(tmp_path: Path) -> Path:
    """Catalogs of three languages: all messages, half of them, a quarter."""
    root = tmp_path / "locale"
    for locale, share in (("de_DE", 1), ("fr", 2), ("sr@latin", 4)):
        entries = [(message, translate(message, locale)) for message in MESSAGES[: len(MESSAGES) // share]]
        write_catalog(root, locale, entries)
    return root


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    """Plain text of two language pairs, split already."""
    raw = tmp_path / "raw"
    raw.mkdir()
    splits = {"valid": MESSAGES[::14], "test": MESSAGES[1::14]}
    splits["train"] = [message for message in MESSAGES if message not in splits["valid"] + splits["test"]]
    for lang, step in (("de", 1), ("fr", 3)):
        for split, chosen in splits.items():
            messages = chosen[:: step if split == "train" else 1]
            (raw / f"{split}.en-{lang}.en").write_text("".join(f"{line}\n" for line in messages))
            (raw / f"{split}.en-{lang}.{lang}").write_text("".join(f"{translate(m, lang)}\n" for m in messages))
    return raw
