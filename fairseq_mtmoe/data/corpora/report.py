"""Reports on a data directory and on lines left out: `report.json` and pages, without times and paths."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fairseq_mtmoe.data.corpora.blocks import BAD_REASONS
from fairseq_mtmoe.data.corpora.cleaning.cleaner import CHANGES, RULES, chosen
from fairseq_mtmoe.data.corpora.engine.assembling import TRAIN, Assembly, Ids
from fairseq_mtmoe.data.corpora.engine.reading import CleanedCorpus
from fairseq_mtmoe.data.corpora.engine.selecting import DRAWN, SIDES, Selection
from fairseq_mtmoe.data.corpora.engine.store import plain, summary_of
from fairseq_mtmoe.data.corpora.page.figures import largest_first, unknown_share
from fairseq_mtmoe.data.corpora.page.pages import markdown_of, page_of
from fairseq_mtmoe.data.corpora.recipes.schema import BACK_TRANSLATED, Role
from fairseq_mtmoe.data.corpora.vocabulary.pieces import OF_GIVEN, OF_OPTIONS, OF_RECIPE, table

Report = dict[str, Any]
Table = tuple[list[str], list[list[str]]]  # head and rows

SPLITS = tuple(role.name for role in Role)


def pair_figures(assembly: Assembly, pair: str) -> Report:
    """Return a pair's tier, directions, sentence pairs by split, shards, and tokens by split and language."""
    counts = dict.fromkeys(SPLITS, 0)
    tokens: dict[str, dict[str, dict[str, int]]] = {}
    for ids in (ids for ids in assembly.ids if ids.pair == pair):
        counts[ids.split] += sum(summary["pairs"] for summary in ids.summaries)
        for lang, sums in _by_language([ids]).items():
            of_lang = {name: sums[name] for name in ("tokens", "unknown")}
            tokens.setdefault(ids.split, {})[assembly.recipe.data_code(lang)] = of_lang
    tier_of = {name: tier for tier, names in assembly.tiers().items() for name in names}
    name = assembly.recipe.data_pair(pair)
    tier = tier_of.get(name) or tier_of.get("-".join(reversed(name.split("-")))) or ""
    shards = assembly.shards(pair) if pair in assembly.sizes else 0
    directions = [way for way in assembly.recipe.trained() if assembly.training_of(way) == pair]
    synthetic = sum(map(assembly.synthetic.__getitem__, assembly.synthetic.keys() & {*directions}))
    told = {"back_translated": synthetic} if synthetic else {}
    return {"tier": tier, "directions": directions, **counts, "shards": shards, "tokens": tokens, **told}


def _by_language(some: Iterable[Ids]) -> dict[str, Counter[str]]:
    """Return the summed figures of each language's text."""
    sums: dict[str, Counter[str]] = {}
    for ids in some:
        for summary in ids.summaries:
            for side, lang in zip(SIDES, ids.pair.split("-"), strict=True):
                sums.setdefault(lang, Counter()).update(summary[side])
    return sums


def _row(name: str, tier: str, pairs: Sequence[Report], counts: Sequence[str], last: Sequence[str]) -> list[str]:
    return [name, tier, *counts, *(f"{sum(pair[split] for pair in pairs):,}" for split in SPLITS), *last]


def _ordered(report: Report) -> list[tuple[str, str, list[Report]]]:
    """Return name, tier and figures of language pairs, largest first, and of their total."""
    pairs = [(name, pair["tier"], [pair]) for name, pair in largest_first(report)]
    return [*pairs, ("total", "", list(report["pairs"].values()))]


def write(folder: Path, report: Report) -> None:
    """Write `report.json`, `report.md` and `report.html` into `folder`."""
    (folder / "report.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "report.md").write_text(markdown_of(report), encoding="utf-8")
    (folder / "report.html").write_text(page_of(report), encoding="utf-8")


def of_corpora(assembly: Assembly, selections: Iterable[Selection], evaluated: Iterable[CleanedCorpus]) -> Report:
    """Return the report on a recipe's corpora, ready for JSON."""
    recipe, made = assembly.recipe, assembly.vocabulary
    found = {selection.corpus.raw.files.name: _trained_corpus(selection) for selection in selections}
    found |= {corpus.raw.files.name: _corpus(corpus) for corpus in evaluated}
    settings = plain(asdict(recipe))
    for name in ("corpora", "path", "known_languages", "of_sources"):  # corpora are reported below
        del settings[name]
    if recipe.codes:
        settings["vocabulary"] |= {"model": None, "dictionary": None}  # temporary files
    else:
        del settings["codes"]
    languages = _by_language(ids for ids in assembly.ids if ids.split == TRAIN)
    advice = OF_GIVEN if recipe.vocabulary.model else OF_OPTIONS if recipe.takes_options else OF_RECIPE
    rows = table({lang: dict(languages[lang]) for lang in sorted(languages)}, advice)
    return {
        "command": "corpora",
        "recipe": settings,
        # if the text allows fewer pieces than the default size
        "fewer_pieces": made.symbols if made.symbols < made.wanted else None,
        "corpora": {corpus.name: found[corpus.name] for corpus in recipe.corpora},
        "pairs": {recipe.data_pair(pair): pair_figures(assembly, pair) for pair in assembly.pairs},
        "vocabulary": {recipe.data_code(lang): row for lang, row in rows.items()},
        "meanings": {"bad": BAD_REASONS, "dropped": RULES, "changed": CHANGES},
    }


def _corpus(corpus: CleanedCorpus) -> Report:
    read = kept = 0
    counts, samples = Counter[str](), dict[str, list[Any]]()
    for summary in map(summary_of, corpus.blocks):
        read += summary["read"]
        kept += summary["kept"]
        counts.update(summary["counts"])
        for rule, some in summary["samples"].items():
            samples[rule] = chosen([*samples.get(rule, []), *map(tuple, some)])
    return {
        "pair": corpus.raw.pair,
        "role": corpus.raw.role.name,
        "files": list(corpus.raw.names),
        "read": read,
        "bad": corpus.result["bad"],
        "bad_samples": corpus.bad_samples,
        "dropped": {rule: counts[rule] for rule in RULES if counts[rule]},
        "samples": {rule: samples[rule] for rule in RULES if rule in samples},
        "changed": {name: counts[name] for name in CHANGES},
        "kept": kept,
    }


def _trained_corpus(selection: Selection) -> Report:
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
        **({"kind": BACK_TRANSLATED} if selection.corpus.raw.is_synthetic else {}),
        **({"weight": selection.corpus.raw.weight} if selection.corpus.raw.weight > 1 else {}),
    }


def pair_table(report: Report) -> Table:
    """Return the table of language pairs of a recipe's corpora, largest first, with a total."""
    rows = []
    for name, tier, pairs in _ordered(report):
        directions = str(sum(len(pair["directions"]) for pair in pairs))
        shards = str(max(pair["shards"] for pair in pairs))
        rows.append(_row(name, tier, pairs, [directions], [shards, f"{unknown_share(pairs) or 0:.2%}"]))
    return ["pair", "tier", "directions", *SPLITS, "shards", "unknown"], rows
