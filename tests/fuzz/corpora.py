"""Corpora in every packing, models of languages and recipes, damaged."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import yaml
from backports import zstd

from fairseq_mtmoe.data.corpora.cleaning import languages as identification
from fairseq_mtmoe.data.corpora.recipes import recipe as loading
from tests.fuzz.harness import Reader
from tests.fuzz.odd_values import ODD, damage, replace_one
from tests.helpers.fasttext_files import write_model
from tests.helpers.reading import corpus, found_in

_ROWS = [{"en": f"house {number}", "de": f"Haus {number % 7}"} for number in range(40)]
_LINES = "".join(f"{row['en']}\t{row['de']}\n" for row in _ROWS).encode()


def _tar(content: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name in ("data/b.tsv", "data/a.tsv"):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def _zip(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data/a.tsv", content)
    return file.getvalue()


_PACKED: tuple[Callable[[bytes], bytes], ...] = (gzip.compress, bz2.compress, lzma.compress, zstd.compress, _tar, _zip)
_FORMS = {"a.tsv": _LINES, "a.jsonl": "\n".join(map(json.dumps, _ROWS)).encode()}


def _make_file(name: str) -> Callable[[random.Random, Path], None]:
    return lambda draw, folder: (folder / name).write_bytes(damage(draw, _FORMS[name]))


def _make_archive(draw: random.Random, folder: Path) -> None:
    content = draw.choice(_PACKED)(_LINES)
    content = draw.choice((gzip.compress, zstd.compress))(content) if draw.random() < 0.3 else content
    (folder / "a.tsv").write_bytes(damage(draw, content))


def _read_archive(folder: Path, draw: random.Random) -> object:
    member = draw.choice(("", "!data/a.tsv", "!*.tsv", "!data/[ab]*", "!" + "a*" * 30 + "b", "!../a"))
    return found_in(corpus(f"{folder}/a.tsv{member}"))


def _make_fasttext(draw: random.Random, folder: Path) -> None:
    words = {"en": ["house", "tree"], "de": ["Haus", "Baum"]}
    content = bytearray(write_model(folder / "model.bin", words).read_bytes())
    for _ in range(draw.choice((1, 1, 2))):  # of the sizes at its start, mostly
        place = draw.randrange(min(len(content), draw.choice((96, 400))) - 8)
        content[place : place + 4] = draw.choice((b"\xff" * 4, b"\0" * 4, b"\0\0\0\x10", draw.randbytes(4)))
    (folder / "model.bin").write_bytes(content if draw.random() < 0.7 else damage(draw, bytes(content)))


def _read_fasttext(folder: Path, draw: random.Random) -> object:
    identification.check_model(str(folder / "model.bin"))
    return identification.in_other_language(["house", "Haus", ""], "en", str(folder / "model.bin"), 0.5)


def _make_recipe(draw: random.Random, folder: Path) -> None:
    name, others = draw.choice(("wmt15", "catalogs", "folder")), tuple(one for one in ODD if not isinstance(one, tuple))
    content = Path(loading.__file__).with_name(f"{name}.yaml").read_bytes()
    if draw.random() < 0.7:
        values = yaml.load(content, yaml.CSafeLoader)
        replace_one(draw, values, others[:6] + others[13:])
        content = yaml.dump(values, Dumper=yaml.CSafeDumper, allow_unicode=True).encode("utf-8", "surrogatepass")
    (folder / "recipe.yaml").write_bytes(content if draw.random() < 0.6 else damage(draw, content))


def _read_file(name: str) -> Callable[[Path, random.Random], object]:
    return lambda folder, draw: found_in(corpus(folder / name))


def readers() -> list[Reader]:
    return [
        *(Reader(name.partition(".")[2], _make_file(name), _read_file(name)) for name in _FORMS),
        Reader("archive", _make_archive, _read_archive),
        Reader("fasttext", _make_fasttext, _read_fasttext),
        Reader("recipe", _make_recipe, lambda folder, draw: loading.load_recipe(folder / "recipe.yaml")),
    ]
