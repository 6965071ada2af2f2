"""Make the text of the study `help`: LibreOffice's help in English and 16 languages, from Debian's packages.

    apt-get download libreoffice-help-{en-us,ca,cs,da,de,es,et,eu,fi,fr,hu,it,nl,pl,pt-br,sl,tr}    # 7.4.7, Debian 12
    for package in libreoffice-help-*.deb; do dpkg-deb -x $package HELP; done
    python benchmarks/help_text.py HELP RAW
    mtmoe prepare corpora RAW DATA --recipe folder --vocab-size 8000

Every paragraph has an id, by which translations are found. Test and validation have paragraphs that all languages have,
so that their sets are parallel, and none that shares 60% of its word trigrams with one training paragraph. In RAW,
`sha256sum -c …/benchmarks/studies/help.sha256` compares the files with the study's. The command ends with the BLEU of a
translation memory: the translation of the training paragraph whose English is most alike.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean

import click
import numpy as np
from parallel_text import near_copies, write_pairs
from sacrebleu import corpus_bleu
from sklearn.feature_extraction.text import TfidfVectorizer

LANGUAGES = ("ca", "cs", "da", "de", "es", "et", "eu", "fi", "fr", "hu", "it", "nl", "pl", "pt", "sl", "tr")
FOLDERS = {"en": "en-US", "pt": "pt-BR"}  # of the help, where they are not the language's code
POOL, TEST, VALID = 3000, 600, 400
SHORTEST, OVERLAP = 5, 0.6  # words of test paragraphs; trigrams that are shared with a near copy
Rows = dict[str, dict[str, str]]  # of an English paragraph its translations


class Paragraphs(HTMLParser):
    """The text of each element with a paragraph's id, the first of an id.

    Where the help switches by system, the text is that of the default. Where it switches by program, it is left out.
    """

    VOID = frozenset({"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"})

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}
        self.switched: set[str] = set()
        self._open: list[tuple[str, str, bool]] = []  # tag, the id that its text belongs to, and whether it is hidden

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self.VOID:
            self._add(" ")
            return
        values = {name: value or "" for name, value in attrs}
        _, key, is_hidden = self._open[-1] if self._open else ("", "", False)
        name = values.get("id", "")
        if tag == "p" or re.fullmatch("h[1-6]", tag):
            is_new = name.startswith(("par_id", "hd_id")) and name not in self.texts
            key = name if is_new else ""
        is_switch = "hidden" in values and not name.startswith("default")
        if is_switch and values.get("class") != "MAC":
            self.switched.add(key)
        self._open.append((tag, key, is_hidden or is_switch))

    def handle_endtag(self, tag: str) -> None:
        while any(name == tag for name, *_ in self._open) and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        self._add(data)

    def _add(self, text: str) -> None:
        _, key, is_hidden = self._open[-1] if self._open else ("", "", False)
        if key and not is_hidden:
            self.texts[key] = self.texts.get(key, "") + text


def read_help(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the place of each paragraph, its page and its id, with its text in single spaces."""
    for path in sorted(folder.rglob("*.html")):
        page = Paragraphs()
        page.feed(path.read_text(encoding="utf-8"))
        for key, text in page.texts.items():
            if key not in page.switched:
                yield f"{path.relative_to(folder).as_posix()}#{key}", " ".join(text.split())


def aligned(folder: Path) -> Rows:
    """Return each English paragraph with its first translation into each language that differs from it."""
    texts = {}
    for language in ("en", *LANGUAGES):
        texts[language] = dict(read_help(folder / FOLDERS.get(language, language) / "text"))
    rows: Rows = {}
    for place, english in texts["en"].items():
        if not re.search("[a-zA-Z]", english):
            continue
        of_row = rows.setdefault(english, {})
        for language in LANGUAGES:
            text = texts[language].get(place, "")
            if text and text != english:
                of_row.setdefault(language, text)
    return rows


def trigrams(text: str) -> set[Hashable]:
    words = re.findall(r"\w+", text.lower())
    return set(zip(words, words[1:], words[2:], strict=False))


def split(rows: Rows) -> dict[str, list[str]]:
    """Return the English paragraphs of each split, in an order that hashes draw."""
    drawn = sorted(rows, key=lambda english: hashlib.sha256(english.encode()).digest())
    whole = [one for one in drawn if len(rows[one]) == len(LANGUAGES) and len(one.split()) >= SHORTEST]
    pool = whole[:POOL]
    train = [one for one in drawn if one not in set(pool)]
    near = near_copies(pool, train, trigrams, OVERLAP)
    new = [one for one, is_near in zip(pool, near, strict=True) if not is_near]
    return {"train": train, "test": new[:TEST], "valid": new[TEST : TEST + VALID]}


def memory_bleu(rows: Rows, splits: dict[str, list[str]]) -> list[float]:
    """Return for each language the BLEU of the training paragraphs whose English has the most alike 5-grams."""
    counter = TfidfVectorizer(analyzer="char", ngram_range=(5, 5), sublinear_tf=True, dtype=np.float32)
    known, asked = counter.fit_transform(splits["train"]), counter.transform(splits["test"])
    likeness = (asked @ known.T).toarray()  # test × training paragraphs
    bleus = []
    for language in LANGUAGES:
        has = np.array([language in rows[english] for english in splits["train"]])
        nearest = np.where(has, likeness, -1.0).argmax(axis=1)
        answers = [rows[splits["train"][at]][language] for at in nearest]
        references = [rows[english][language] for english in splits["test"]]
        bleus.append(corpus_bleu(answers, [references]).score)
    return bleus


@click.command()
@click.argument("source", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("target", type=click.Path(path_type=Path, file_okay=False))
def main(source: Path, target: Path) -> None:
    """Write the study's text from SOURCE, where the packages lie unpacked, into the folder TARGET."""
    rows = aligned(source / "usr" / "share" / "libreoffice" / "help")
    splits = split(rows)
    target.mkdir(parents=True)
    for language in LANGUAGES:
        pairs = {}
        for name, english in splits.items():
            pairs[name] = [(text, rows[text][language]) for text in english if language in rows[text]]
            click.echo(f"en-{language}, {name}: {len(pairs[name]):,}")
        write_pairs(target, language, pairs)
    bleus = memory_bleu(rows, splits)
    click.echo(f"BLEU of a translation memory: {fmean(bleus):.1f} in the mean, {min(bleus):.1f} to {max(bleus):.1f}")


if __name__ == "__main__":
    main()
