"""A recipe of six formats, and the bytes that 0.2.0 prepared from it, which later versions must prepare, too.

`python -m tests.golden.prepared` writes `prepared.json` anew, after a change that is meant to change them.
"""

import gzip
import json
import tempfile
from pathlib import Path
from xml.sax.saxutils import escape

import yaml

from tests.helpers.invoked import mtmoe
from tests.helpers.raw_corpora import digests, sentences

DIGESTS = Path(__file__).parent / "prepared.json"
SIZE = 40  # sentences of a corpus
FORMATS = ("moses", "tsv", "jsonl", "tmx", "po", "sgm")
DESCRIPTIONS = ("manifest.json", "report.json", "report.md", "report.html", "stamp.json")  # words may change
Rows = list[tuple[str, str]]


def rows_of(name: str, target: str) -> Rows:
    """Return sentence pairs, among them a copy, a pair twice, and one that differs only in case."""
    sources = sentences(name, SIZE)
    targets = sentences(f"{name} {target}", SIZE, target)
    rows = list(zip(sources, targets, strict=True))
    return [*rows, rows[0], (rows[1][0].upper(), rows[1][1]), (sources[2], sources[2])]


def write_moses(raw: Path, name: str, rows: Rows) -> list[str]:
    """Write two packed files with a sentence per line."""
    names = [f"{name}.en.gz", f"{name}.de.gz"]
    for side, file in enumerate(names):
        text = "".join(f"{row[side]}\n" for row in rows)
        (raw / file).write_bytes(gzip.compress(text.encode(), mtime=0))
    return names


def write_tsv(raw: Path, name: str, rows: Rows) -> list[str]:
    """Write a table with a number, the source and the target."""
    lines = [f"{number}\t{source}\t{target}\n" for number, (source, target) in enumerate(rows)]
    (raw / f"{name}.tsv").write_text("".join(lines))
    return [f"{name}.tsv"]


def write_jsonl(raw: Path, name: str, rows: Rows) -> list[str]:
    """Write a JSON object per line, as `datasets` exports translations."""
    lines = [json.dumps({"translation": {"en": source, "de": target}}) for source, target in rows]
    (raw / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return [f"{name}.jsonl"]


def write_tmx(raw: Path, name: str, rows: Rows) -> list[str]:
    """Write a translation memory."""
    units = []
    for source, target in rows:
        sides = (("en", source), ("de", target))
        variants = [f'<tuv xml:lang="{lang}"><seg>{escape(text)}</seg></tuv>' for lang, text in sides]
        units.append(f"<tu>{''.join(variants)}</tu>\n")
    text = f'<?xml version="1.0"?>\n<tmx version="1.4"><body>\n{"".join(units)}</body></tmx>\n'
    (raw / f"{name}.tmx").write_text(text)
    return [f"{name}.tmx"]


def write_po(raw: Path, name: str, rows: Rows) -> list[str]:
    """Write a catalog of messages; it has each message once."""
    entries = [f'msgid "{source}"\nmsgstr "{target}"\n\n' for source, target in dict(rows).items()]
    header = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
    (raw / f"{name}.po").write_text(header + "".join(entries))
    return [f"{name}.po"]


def write_sgm(raw: Path, name: str, rows: Rows) -> list[str]:
    """Write the source and the reference of a WMT test set."""
    names = [f"{name}-src.en.sgm", f"{name}-ref.de.sgm"]
    for side, file in enumerate(names):
        kind = "refset" if side else "srcset"
        segments = [f'<seg id="{number}">{escape(row[side])}</seg>\n' for number, row in enumerate(rows, 1)]
        opening = f'<{kind} setid="made" srclang="en" trglang="de">\n<doc docid="one">\n<p>\n'
        (raw / file).write_text(f"{opening}{''.join(segments)}</p>\n</doc>\n</{kind}>\n")
    return names


def write_raw(raw: Path) -> Path:
    """Write a corpus of each format and a recipe of them; return the recipe's path."""
    raw.mkdir(parents=True)
    corpora = []
    for name in FORMATS:
        files = globals()[f"write_{name}"](raw, name, rows_of(name, "de"))
        role = "test" if name == "sgm" else "train"
        corpora.append({"name": name, "pair": "en-de", "role": role, "files": files, "format": name})
    corpora[FORMATS.index("tsv")]["fields"] = {"source": 2, "target": 3}
    corpora[FORMATS.index("jsonl")]["fields"] = {"source": "translation.en", "target": "translation.de"}
    french = write_moses(raw, "french", rows_of("french", "fr"))
    corpora.append({"name": "french", "pair": "en-fr", "role": "train", "files": french, "weight": 2})
    recipe = {
        "name": "formats",
        "corpora": corpora,
        "held_out": {"valid": 10, "test": 10},
        "vocabulary": {"size": 80},
        "shards": {"pairs": 60},
    }
    path = raw / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return path


def prepared(folder: Path) -> dict[str, str]:
    """Prepare the corpora in `folder`, and return the digest of every file that training reads."""
    recipe = write_raw(folder / "raw")
    mtmoe("prepare", "corpora", folder / "raw", folder / "data", "--recipe", recipe, "--workers", 1)
    every_file = digests(folder / "data")
    return {name: digest for name, digest in every_file.items() if name not in DESCRIPTIONS}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        DIGESTS.write_text(json.dumps(prepared(Path(temporary)), indent=1) + "\n")
