"""Reports on a data directory and on lines left out: `report.json` and pages, without times and paths."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fairseq_mtmoe.data.corpora.blocks import BAD_REASONS
from fairseq_mtmoe.data.corpora.catalogs import DROP_REASONS
from fairseq_mtmoe.data.corpora.cleaning.cleaner import CHANGES, RULES, chosen
from fairseq_mtmoe.data.corpora.engine.assembling import TRAIN, Assembly, Ids
from fairseq_mtmoe.data.corpora.engine.reading import CleanedCorpus
from fairseq_mtmoe.data.corpora.engine.selecting import DRAWN, SIDES, Selection
from fairseq_mtmoe.data.corpora.engine.store import plain, summary_of
from fairseq_mtmoe.data.corpora.page.figures import MANY_UNKNOWN, largest_first, unknown_share
from fairseq_mtmoe.data.corpora.page.pages import markdown_of, page_of
from fairseq_mtmoe.data.corpora.recipes.schema import BACK_TRANSLATED, Role
from fairseq_mtmoe.data.corpora.vocabulary.pieces import OF_GIVEN, OF_OPTIONS, OF_RECIPE, table
from fairseq_mtmoe.data.translation.tiers import TIER_RULE
from fairseq_mtmoe.io.tables import markdown_table

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
    """Write `report.json`, `report.md` and, of a recipe's corpora, `report.html` into `folder`."""
    is_text = report["command"] != "corpora"
    (folder / "report.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "report.md").write_text(_text_page(report) if is_text else markdown_of(report), encoding="utf-8")
    if not is_text:
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


def text_table(report: Report, by_reason: bool = False) -> Table:
    """Return the table of language pairs, largest first, with a total; dropped pairs in one column or by reason."""
    columns = {"dropped": list(DROP_REASONS)}
    if by_reason:
        occurring = {reason for pair in report["pairs"].values() for reason in pair["dropped"]}
        columns = {f"−{reason}": [reason] for reason in DROP_REASONS if reason in occurring}
    rows = []
    for name, tier, pairs in _ordered(report):
        sums = [sum(pair["dropped"].get(one, 0) for pair in pairs for one in reasons) for reasons in columns.values()]
        rows.append(
            _row(name, tier, pairs, [], [*(f"{number:,}" for number in sums), f"{unknown_share(pairs) or 0:.2%}"])
        )
    return ["pair", "tier", *SPLITS, *columns, "unknown"], rows


def hints(report: Report) -> list[str]:
    """Return warnings for a user before training."""
    pairs = report["pairs"]
    found = sum(pair["evaluation_sources_in_training"] for pair in pairs.values())
    lines = [f"{found:,} validation and test sources also occur in training data."] if found else []
    lines += [
        f"{name}: one of the training files has {pair['dropped']['unequal']:,} more lines, which are left out."
        for name, pair in pairs.items()
        if "unequal" in pair["dropped"]
    ]
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for pair in pairs.values():
        for lang, counts in pair["tokens"].get("test", {}).items():
            sums[lang].update(counts)
    shares = {lang: counts["unknown"] / max(1, counts["tokens"]) for lang, counts in sorted(sums.items())}
    many = ", ".join(f"{lang} {share:.1%}" for lang, share in shares.items() if share >= MANY_UNKNOWN)
    coverage = report["options"].get("character_coverage")  # none for a given vocabulary
    if many and coverage != 1:
        more = "" if coverage is None else f"; raise `--character-coverage` above {coverage:g} to include more of them"
        lines.append(
            f"Some tokens of the test sets are characters that the vocabulary lacks ({many}), which no model can"
            f" write{more}."
        )
    return lines


def _text_page(report: Report) -> str:
    """Return a report in Markdown, with `sources`, `left_out` messages and changes of `files` if present."""
    head, rows = text_table(report, by_reason=True)
    pairs = {name: pair for name, pair in report["pairs"].items() if pair["evaluation_sources_in_training"]}
    seen = sum(pair["evaluation_sources_in_training"] for pair in pairs.values())
    settings = [f"- {name.replace('_', ' ')}: {value}" for name, value in report["options"].items()]
    settings.append(f"- validation and test sources that also occur in some language's training data: {seen}")
    meanings = [f"`−{name}` (dropped): {meaning}." for name, meaning in DROP_REASONS.items() if f"−{name}" in head]
    parts = [
        f"# Data directory made by `mtmoe prepare {report['command']}`",
        "\n".join(settings),
        markdown_table(head, rows, texts=2),
        "\n".join([TIER_RULE, "`unknown`: share of test tokens, both sides, that the vocabulary lacks.", *meanings]),
        *hints(report),
    ]
    if pairs:
        head = ["validation and test sources of", "found in training", "in training data of"]
        found = [
            (name, pair["evaluation_sources_in_training"], pair["found_in_training_of"]) for name, pair in pairs.items()
        ]
        rows = [[name, f"{number:,}", _listed(of)] for name, number, of in found]
        parts.append(markdown_table(head, rows, texts=(0, 2)))
    if "files" in report:
        parts += _changes(report["files"])
    if "sources" in report:
        of = [[one["source"], f"{one['catalogs']:,}", ", ".join(one["damaged"]) or "none"] for one in report["sources"]]
        parts.append(markdown_table(["source", "catalogs", "damaged, not read"], of, texts=(0, 2)))
    if report.get("left_out"):
        parts.append(f"Languages left out, with their number of messages: {_listed(report['left_out'])}.")
    return "\n\n".join(parts) + "\n"


def _changes(files: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return the parts on normalisation of each text file."""
    rows = [[name, *(f"{of[kind]:,}" for kind in CHANGES)] for name, of in files.items() if any(of.values())]
    if not rows:
        return ["No text file had control or invisible characters, or lines that were not in Unicode NFC."]
    head = ["file", "characters removed", "line breaks made spaces", "lines made NFC"]
    said = "Control and invisible characters are removed and lines are made NFC, also in validation and test files:"
    return [said, markdown_table(head, rows)]


def _listed(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count:,})" for name, count in sorted(numbers.items()))
