"""What a data directory holds and what was left out: `report.json`, `report.md` and `report.html`.

Nothing in a report depends on when, where or by how many workers it was made; see the log of the work folder for that.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fairseq_mtmoe.data.corpora.cleaning import CHANGES, RULES, chosen
from fairseq_mtmoe.data.corpora.engine.assembling import TRAIN, Assembly
from fairseq_mtmoe.data.corpora.engine.encoding import SIDES, Encoded
from fairseq_mtmoe.data.corpora.engine.held_out import DRAWN
from fairseq_mtmoe.data.corpora.engine.reading import CleanedCorpus, summaries
from fairseq_mtmoe.data.corpora.engine.selecting import Selection
from fairseq_mtmoe.data.corpora.engine.store import plain
from fairseq_mtmoe.data.corpora.page import markdown_of, page_of
from fairseq_mtmoe.data.corpora.readers import BAD_REASONS
from fairseq_mtmoe.data.corpora.recipes import Recipe, Role
from fairseq_mtmoe.data.corpora.vocabulary import table

SPLITS = tuple(role.name for role in Role)


def make_report(
    recipe: Recipe, assembly: Assembly, selections: Iterable[Selection], evaluated: Iterable[CleanedCorpus]
) -> dict[str, Any]:
    """All numbers, ready for JSON."""
    found = {selection.corpus.raw.files.name: _trained_corpus(selection) for selection in selections}
    found |= {corpus.raw.files.name: _corpus(corpus) for corpus in evaluated}
    corpora = {corpus.name: found[corpus.name] for corpus in recipe.corpora}
    rows = table(_languages(assembly), is_given=recipe.vocabulary.model is not None)
    return {
        "command": "corpora",
        "recipe": _settings(recipe),
        "fewer_pieces": _fewer_pieces(assembly),
        "corpora": corpora,
        "pairs": {recipe.data_pair(pair): pair_figures(assembly, pair) for pair in assembly.pairs},
        "vocabulary": {recipe.data_code(lang): row for lang, row in rows.items()},
        "meanings": {"bad": BAD_REASONS, "dropped": RULES, "changed": CHANGES},
    }


def _fewer_pieces(assembly: Assembly) -> int | None:
    """How many the vocabulary has, where the text allows no more and the recipe does not say how many."""
    made = assembly.vocabulary
    return made.symbols if made.symbols < made.wanted else None


def _settings(recipe: Recipe) -> dict[str, Any]:
    """The recipe without its corpora: these have a place of their own."""
    values: dict[str, Any] = plain(asdict(recipe))
    del values["corpora"], values["path"], values["known_languages"]
    return values


def _corpus(corpus: CleanedCorpus) -> dict[str, Any]:
    read, counts, samples = 0, Counter[str](), dict[str, list[Any]]()
    kept = 0
    for summary in summaries(corpus):
        read += summary["read"]
        kept += summary["kept"]
        counts.update(summary["counts"])
        for rule, some in summary["samples"].items():
            samples[rule] = chosen([*samples.get(rule, []), *map(tuple, some)])
    names = corpus.raw.names
    return {
        "pair": corpus.raw.pair,
        "role": corpus.raw.role.name,
        "files": list(names),
        "read": read,
        "bad": corpus.result["bad"],
        "bad_samples": corpus.bad_samples,
        "dropped": {rule: counts[rule] for rule in RULES if counts[rule]},
        "samples": {rule: samples[rule] for rule in RULES if rule in samples},
        "changed": {name: counts[name] for name in CHANGES},
        "kept": kept,
    }


def _trained_corpus(selection: Selection) -> dict[str, Any]:
    report, later = _corpus(selection.corpus), selection.summary()
    dropped = Counter(report["dropped"]) + Counter(later["dropped"])
    samples = {
        rule: chosen([*report["samples"].get(rule, []), *map(tuple, later["samples"].get(rule, []))]) for rule in RULES
    }
    return {
        **report,
        "dropped": {rule: dropped[rule] for rule in RULES if dropped[rule]},
        "samples": {rule: some for rule, some in samples.items() if some},
        "drawn": later["dropped"].get(DRAWN, 0),
        "kept": later["kept"],
    }


def _texts(assembly: Assembly) -> Iterable[tuple[str, str, Encoded]]:
    """(pair, split, ids) of all text."""
    for pair, corpora in assembly.training.items():
        for encoded in corpora:
            yield pair, TRAIN, encoded
    for text, encoded in assembly.evaluation:
        yield text.pair, text.split, encoded


def pair_figures(assembly: Assembly, pair: str) -> dict[str, Any]:
    """A language pair's tier, directions, sentence pairs by split, shards, and tokens by split and language."""
    counts = dict.fromkeys(SPLITS, 0)
    tokens: dict[str, dict[str, dict[str, int]]] = {}
    for of, split, encoded in _texts(assembly):
        for summary in encoded.summaries() if of == pair else ():
            counts[split] += summary["pairs"]
            for side, lang in zip(SIDES, pair.split("-"), strict=True):
                sums = tokens.setdefault(split, {}).setdefault(
                    assembly.recipe.data_code(lang), {"tokens": 0, "unknown": 0}
                )
                for name in sums:
                    sums[name] += summary[side][name]
    tier_of = {name: tier for tier, names in assembly.tiers().items() for name in names}
    name = assembly.recipe.data_pair(pair)
    tier = tier_of.get(name) or tier_of.get("-".join(reversed(name.split("-")))) or ""
    shards = assembly.shards(pair) if pair in assembly.training else 0
    directions = [way for way in assembly.recipe.trained() if assembly.training_of(way) == pair]
    return {"tier": tier, "directions": directions, **counts, "shards": shards, "tokens": tokens}


def _languages(assembly: Assembly) -> dict[str, dict[str, int]]:
    """What each language's training text comes to."""
    sums: dict[str, Counter[str]] = {}
    for pair, split, encoded in _texts(assembly):
        for summary in encoded.summaries() if split == TRAIN else ():
            for side, lang in zip(SIDES, pair.split("-"), strict=True):
                sums.setdefault(lang, Counter()).update(summary[side])
    return {lang: dict(sums[lang]) for lang in sorted(sums)}


# ---- for people ----


def write_report(folder: Path, report: Mapping[str, Any]) -> None:
    """Write all three into `folder`."""
    (folder / "report.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "report.md").write_text(markdown_of(report), encoding="utf-8")
    (folder / "report.html").write_text(page_of(report), encoding="utf-8")


def pair_table(report: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table of language pairs, largest first, with a total."""
    pairs = sorted(report["pairs"].items(), key=lambda item: (-item[1][TRAIN], item[0]))
    head = ["pair", "tier", "directions", *SPLITS, "shards", "unknown"]
    rows = [[name, pair["tier"], *_numbers([pair])] for name, pair in pairs]
    return head, [*rows, ["total", "", *_numbers([pair for _, pair in pairs])]]


def _numbers(pairs: Sequence[Mapping[str, Any]]) -> list[str]:
    sides = [side for pair in pairs for side in pair["tokens"].get("test", {}).values()]
    unknown = sum(side["unknown"] for side in sides) / max(1, sum(side["tokens"] for side in sides))
    shards = max(pair["shards"] for pair in pairs)
    directions = str(sum(len(pair["directions"]) for pair in pairs))
    return [directions, *(f"{sum(pair[split] for pair in pairs):,}" for split in SPLITS), str(shards), f"{unknown:.2%}"]
