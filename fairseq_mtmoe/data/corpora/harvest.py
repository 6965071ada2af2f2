"""From gettext catalogs to text that is split by English message: the first half of `prepare catalogs`.

No test message of any language is in the training data of any language; a singular and its plural are one message.
"""

import hashlib
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from itertools import islice, product
from pathlib import Path
from typing import Any

from fairseq_mtmoe.data.corpora.blocks import CorpusFiles
from fairseq_mtmoe.data.corpora.catalogs import Catalog, CatalogText, SentencePair, message_key, read_catalog
from fairseq_mtmoe.data.corpora.engine.jobs import RawCorpus
from fairseq_mtmoe.data.corpora.engine.store import Stage
from fairseq_mtmoe.data.corpora.engine.workers import Tools
from fairseq_mtmoe.data.corpora.recipes.schema import Role
from fairseq_mtmoe.data.translation.file_names import side_name
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import write_text

EVALUATION = ("test", "valid")
MIN_TRAINING_SHARE = 0.5  # smallest share of messages left for training, for languages chosen by default
_AT_ONCE = 16  # catalogs in a job

Pairs = Sequence[SentencePair]


@dataclass
class Harvest:
    """Content of all catalogs."""

    pairs: dict[str, list[SentencePair]] = field(default_factory=dict)  # by language, without duplicates
    group_of: dict[str, str] = field(default_factory=dict)  # message group of each source sentence
    dropped: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))  # by language and reason
    damaged: list[int] = field(default_factory=list)  # indices of catalogs that could not be read

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of messages by language."""
        return {lang: len({self.group_of[source] for source, _ in pairs}) for lang, pairs in self.pairs.items()}


class DedupGroups:
    """Disjoint sets of message keys (union-find); each key begins in a set of its own."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def find(self, key: str) -> str:
        """Return the set's name, its smallest key, independent of the order of joins."""
        while (parent := self._parent.get(key, key)) != key:
            self._parent[key] = self._parent.get(parent, parent)
            key = parent
        return key

    def join(self, first: str, second: str) -> None:
        """Unite the sets of two keys."""
        smaller, larger = sorted((self.find(first), self.find(second)))
        self._parent[larger] = smaller


def harvest_and_split(
    tools: Tools,
    catalogs: Sequence[Catalog],
    hashes: Sequence[str],
    sizes: Mapping[str, int],
    seed: int,
    langs: Sequence[str],
    max_langs: int | None,
) -> tuple[list[RawCorpus], dict[str, Any]]:
    """Read catalogs, choose languages (`select_languages`), split their messages, and write them as text files.

    Returns the files of all splits, and a dictionary: `dropped` pairs by language pair and reason, messages of
    languages `left_out`, indices of `damaged` catalogs. `hashes` are of the catalogs; `sizes` are messages per split.
    """
    stage = tools.work.stage(
        "split",
        content=list(hashes),
        about=[[catalog.lang, catalog.source, catalog.name] for catalog in catalogs],
        max_langs=max_langs,
        sizes=dict(sizes),
        seed=seed,
        langs=list(langs),
        unicode=unicodedata.unidata_version,
        polib=version("polib"),
    )
    if stage.result() is None:
        harvest = read_catalogs(tools, catalogs)
        chosen = select_languages(harvest.counts, sum(sizes.values()), langs, max_langs)
        _write_split(stage, harvest, chosen, sizes, seed)
    result = stage.result() or {}
    corpora = []
    for pair, role in product(result["pairs"], Role):
        source, target = pair.split("-")
        paths = tuple(stage.folder / side_name(role.name, pair, lang) for lang in (source, target))
        files = CorpusFiles(f"{role.name}.{pair}", paths, source, target, format="text")
        corpora.append(RawCorpus(files, pair, role, tuple(f"{stage.key}/{path.name}" for path in paths)))
    return corpora, result


def read_catalogs(tools: Tools, catalogs: Sequence[Catalog]) -> Harvest:
    """Read and clean all catalogs, by the workers; damaged ones are recorded and skipped."""
    paths = list(enumerate(catalog.path for catalog in catalogs))
    jobs = (partial(read_some, paths[first : first + _AT_ONCE]) for first in range(0, len(paths), _AT_ONCE))
    texts: dict[int, CatalogText | None] = {}
    with tools.shown.step("Reading catalogs") as step:
        for found in tools.workers.map_blocks(jobs):
            texts |= found
            step.advance(sum(len(text.pairs) for text in found.values() if text))
    harvest, groups = Harvest(), DedupGroups()
    for index, catalog in enumerate(catalogs):
        text = texts[index]
        if text is None:
            harvest.damaged.append(index)
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


def read_some(paths: Sequence[tuple[int, Path]]) -> dict[int, CatalogText | None]:
    """Read catalogs by their numbers; a worker's job."""
    return {index: read_catalog(path) for index, path in paths}


def describe_sources(catalogs: Sequence[Catalog], damaged: Sequence[int]) -> list[dict[str, Any]]:
    """Return each source's number of catalogs and its damaged ones, for a report; `damaged` has indices."""
    rows: dict[str, dict[str, Any]] = {}
    for index, catalog in enumerate(catalogs):
        row = rows.setdefault(catalog.source, {"source": catalog.source, "catalogs": 0, "damaged": []})
        row["catalogs"] += 1
        row["damaged"] += [catalog.name] if index in damaged else []
    return list(rows.values())


def select_languages(
    num_messages: Mapping[str, int], held_out: int, langs: Sequence[str] = (), max_langs: int | None = None
) -> list[str]:
    """Return the languages to use, largest first: `langs`, or all with enough messages besides `held_out`.

    It keeps `max_langs` of them, evenly spaced by size. `num_messages` is by language.
    """
    for lang in langs:
        if num_messages.get(lang, 0) <= held_out:
            raise UserError(
                f"`--valid-size` and `--test-size` must leave {lang} messages for training, but it has"
                f" {num_messages.get(lang, 0)} and {held_out} are held out."
            )
    enough = langs or [lang for lang, count in num_messages.items() if count * (1 - MIN_TRAINING_SHARE) >= held_out]
    if not enough:
        raise UserError(
            f"`--valid-size` and `--test-size` must leave messages for training, but the largest language has"
            f" {max(num_messages.values(), default=0)} and {held_out} are held out."
        )
    ordered = sorted(enough, key=lambda lang: (-num_messages[lang], lang))
    if max_langs is None or max_langs >= len(ordered):
        return ordered
    steps = max(max_langs - 1, 1)
    return [ordered[round(index * (len(ordered) - 1) / steps)] for index in range(max_langs)]


def split_by_message(
    pairs: Mapping[str, Pairs], group_of: Mapping[str, str], sizes: Mapping[str, int], seed: int
) -> dict[str, dict[str, Pairs]]:
    """Split English-to-many pairs by language and split, so that splits share no message in any language.

    The smallest language chooses first; the others hold out the same messages if they have them. Pairs whose message is
    held out in another wording or language are in no split. `group_of` has each source's message group; `sizes` are of
    test and valid. Languages are ordered by size, training pairs as given, others as drawn.
    """
    groups = {lang: {group_of[source] for source, _ in of_lang} for lang, of_lang in pairs.items()}
    draw = {
        group: hashlib.sha256(f"{seed}\0{group}".encode()).digest() for of_lang in groups.values() for group in of_lang
    }
    by_size = sorted(pairs, key=lambda lang: (len(groups[lang]), lang))
    held_out = _choose([groups[lang] for lang in by_size], draw, sizes)
    spread = Counter(wording for of_lang in pairs.values() for wording in {source for source, _ in of_lang})
    splits: dict[str, dict[str, Pairs]] = {}
    for lang in reversed(by_size):
        splits[lang] = {"train": [pair for pair in pairs[lang] if group_of[pair[0]] not in held_out]}
        best: dict[str, SentencePair] = {}  # per group, the first pair with the most common wording
        for pair in pairs[lang]:
            group = group_of[pair[0]]
            if group in held_out and (group not in best or spread[pair[0]] > spread[best[group][0]]):
                best[group] = pair
        for name in EVALUATION:
            drawn = sorted((group for group in best if held_out[group] == name), key=draw.__getitem__)
            splits[lang][name] = [best[group] for group in drawn[: sizes[name]]]
    return splits


def _choose(groups: Sequence[set[str]], draw: Mapping[str, bytes], sizes: Mapping[str, int]) -> dict[str, str]:
    """Return the split of each held-out group; `groups` are the languages' groups, the smallest language first."""
    held_out: dict[str, str] = {}
    for of_lang in groups:
        free = iter(sorted(of_lang - held_out.keys(), key=draw.__getitem__))
        for name in EVALUATION:
            there = sum(held_out.get(group) == name for group in of_lang)
            held_out |= dict.fromkeys(islice(free, max(0, sizes[name] - there)), name)
    return held_out


def _write_split(stage: Stage, harvest: Harvest, chosen: Sequence[str], sizes: Mapping[str, int], seed: int) -> None:
    pairs, dropped = {lang: harvest.pairs[lang] for lang in chosen}, {}
    for lang, splits in split_by_message(pairs, harvest.group_of, sizes, seed).items():
        for split, of_split in splits.items():
            for number, side in enumerate(("en", lang)):
                path = stage.folder / side_name(split, f"en-{lang}", side)
                write_text(path, "".join(f"{pair[number]}\n" for pair in of_split))
        reserved = len(pairs[lang]) - sum(map(len, splits.values()))
        dropped[f"en-{lang}"] = {**harvest.dropped[lang], "reserved": reserved}
    left_out = {lang: count for lang, count in harvest.counts.items() if lang not in chosen}
    stage.finish({"pairs": list(dropped), "dropped": dropped, "left_out": left_out, "damaged": harvest.damaged})
