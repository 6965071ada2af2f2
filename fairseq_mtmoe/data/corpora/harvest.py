"""From gettext catalogs to text that is split: `prepare catalogs` up to where it goes on as `prepare text` does.

Catalogs are read by the workers, some at a time; what they hold together is in memory.
"""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from fairseq_mtmoe.data.corpora.blocks import CorpusFiles
from fairseq_mtmoe.data.corpora.catalogs import Catalog, CatalogText, SentencePair, read_catalog
from fairseq_mtmoe.data.corpora.engine.progress import Shown
from fairseq_mtmoe.data.corpora.engine.reading import RawCorpus
from fairseq_mtmoe.data.corpora.engine.store import Stage, WorkFolder
from fairseq_mtmoe.data.corpora.engine.workers import Workers
from fairseq_mtmoe.data.corpora.messages import message_key
from fairseq_mtmoe.data.corpora.recipes import Role
from fairseq_mtmoe.data.corpora.split import DedupGroups, Pairs, select_languages, split_by_message
from fairseq_mtmoe.data.translation.file_names import side_name
from fairseq_mtmoe.io.files import write_text

_AT_ONCE = 16  # catalogs of a job


@dataclass
class Harvest:
    """What catalogs hold together.

    Attributes:
        pairs: by language, of several equal ones the first.
        group_of: by source sentence, the name of its message.
        dropped: by language and reason, how many others there were.
        damaged: places of catalogs that could not be read.
    """

    pairs: dict[str, list[SentencePair]] = field(default_factory=dict)
    group_of: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    damaged: list[int] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        """How many different messages each language has."""
        return {lang: len({self.group_of[source] for source, _ in pairs}) for lang, pairs in self.pairs.items()}


@dataclass(frozen=True)
class Parts:
    """Harvested text, split.

    Attributes:
        corpora: the files of every language's splits.
        dropped: by language pair and reason, how many pairs were left out.
        left_out: messages of the languages that were not taken.
        damaged: catalogs that could not be read.
    """

    corpora: list[RawCorpus]
    dropped: dict[str, dict[str, int]]
    left_out: dict[str, int]
    damaged: list[Catalog]


@dataclass(frozen=True)
class Choice:
    """Which languages are taken, and how many of their messages are held out: see `split.select_languages`."""

    sizes: Mapping[str, int]
    seed: int
    langs: Sequence[str]
    max_langs: int | None


def harvest_and_split(
    work: WorkFolder, catalogs: Sequence[Catalog], hashes: Sequence[str], choice: Choice, workers: Workers, shown: Shown
) -> Parts:
    """Read catalogs, choose languages, split their messages, and write them as text files.

    Args:
        hashes: of the catalogs' content.

    Raises:
        UserError: a language is too small, or none is large enough.
    """
    versions = {"unicode": unicodedata.unidata_version, "polib": version("polib")}
    about = [[catalog.lang, catalog.source, catalog.name] for catalog in catalogs]
    settings = {"sizes": dict(choice.sizes), "seed": choice.seed, "langs": list(choice.langs)}
    stage = work.stage("split", content=list(hashes), about=about, max_langs=choice.max_langs, **settings, **versions)
    if stage.result() is None:
        _split(stage, read_catalogs(catalogs, workers, shown), choice)
    result = stage.result() or {}
    corpora = [_corpus(stage, pair, role) for pair in result["pairs"] for role in Role]
    damaged = [catalogs[place] for place in result["damaged"]]
    return Parts(corpora, result["dropped"], result["left_out"], damaged)


def read_catalogs(catalogs: Sequence[Catalog], workers: Workers, shown: Shown) -> Harvest:
    """Read and clean all catalogs, by the workers; a damaged one is noted, and has nothing."""
    paths = [catalog.path for catalog in catalogs]
    jobs = [(first, paths[first : first + _AT_ONCE]) for first in range(0, len(paths), _AT_ONCE)]
    texts: dict[int, CatalogText | None] = {}
    with shown.step("Reading catalogs") as step:
        for first, found in workers.map_blocks(read_some, jobs):
            texts |= dict(enumerate(found, first))
            step.advance(sum(len(text.pairs) for text in found if text))
    harvest, groups = Harvest(), DedupGroups()
    for place, catalog in enumerate(catalogs):
        text = texts[place]
        if text is None:
            harvest.damaged.append(place)
            continue
        harvest.dropped[catalog.lang].update(text.dropped)
        harvest.pairs.setdefault(catalog.lang, []).extend(text.pairs)
        for one, other in text.joined:
            groups.join(one, other)
    for lang, pairs in list(harvest.pairs.items()):
        distinct = list(dict.fromkeys(pairs))
        harvest.dropped[lang] += Counter(duplicate=len(pairs) - len(distinct))
        harvest.pairs[lang] = distinct
        harvest.group_of |= {source: groups.find(message_key(source)) for source, _ in distinct}
    harvest.pairs = {lang: pairs for lang, pairs in harvest.pairs.items() if pairs}
    return harvest


def read_some(job: tuple[int, Sequence[Path]]) -> tuple[int, list[CatalogText | None]]:
    """The place of the first of some catalogs, and what they hold."""
    first, paths = job
    return first, list(map(read_catalog, paths))


def _split(stage: Stage, harvest: Harvest, choice: Choice) -> None:
    counts = harvest.counts
    chosen = select_languages(counts, sum(choice.sizes.values()), choice.langs, choice.max_langs)
    pairs = {lang: harvest.pairs[lang] for lang in chosen}
    dropped = {}
    for lang, splits in split_by_message(pairs, harvest.group_of, choice.sizes, choice.seed).items():
        for split, of_split in splits.items():
            _write(stage.folder, split, lang, of_split)
        reserved = len(pairs[lang]) - sum(map(len, splits.values()))
        dropped[f"en-{lang}"] = {**harvest.dropped[lang], "reserved": reserved}
    left_out = {lang: count for lang, count in counts.items() if lang not in chosen}
    stage.finish({"pairs": list(dropped), "dropped": dropped, "left_out": left_out, "damaged": harvest.damaged})


def _write(folder: Path, split: str, lang: str, pairs: Pairs) -> None:
    for number, side in enumerate(("en", lang)):
        write_text(folder / side_name(split, f"en-{lang}", side), "".join(f"{pair[number]}\n" for pair in pairs))


def _corpus(stage: Stage, pair: str, role: Role) -> RawCorpus:
    source, target = pair.split("-")
    paths = tuple(stage.folder / side_name(role.name, pair, lang) for lang in (source, target))
    files = CorpusFiles(f"{role.name}.{pair}", paths, source, target, format="text")
    return RawCorpus(files, pair, role, tuple(f"{stage.key}/{path.name}" for path in paths))
