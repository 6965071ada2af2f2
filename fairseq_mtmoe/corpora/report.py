"""Reports on a data directory: `report.json` and pages, without times and paths."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from fairseq_mtmoe.core.pages import markdown_of, page_of
from fairseq_mtmoe.corpora.blocks import BAD_REASONS
from fairseq_mtmoe.corpora.cleaning.cleaner import RULES
from fairseq_mtmoe.corpora.engine.selecting import DRAWN
from fairseq_mtmoe.corpora.engine.state import BAD_LINES, SIDES, CorpusState, written_in
from fairseq_mtmoe.corpora.engine.writing import DataDirectory
from fairseq_mtmoe.corpora.findings import SPLITS
from fairseq_mtmoe.corpora.page import ABOUT, sections_of
from fairseq_mtmoe.corpora.recipes.codes import reversed_pair
from fairseq_mtmoe.corpora.recipes.schema import BACK_TRANSLATED, Corpus
from fairseq_mtmoe.corpora.vocabulary.pieces import OF_GIVEN, OF_RECIPE, table

Report = dict[str, Any]
CITATIONS = "CITATIONS.bib"


def pair_figures(data: DataDirectory, pair: str) -> Report:
    """Return a pair's tier, directions, shards, sentence pairs and tokens."""
    counts = dict.fromkeys(SPLITS, 0)
    tokens: dict[str, dict[str, dict[str, int]]] = {}
    for split, corpora in data.splits[pair].items():
        counts[split] = written_in(corpora)
        tokens[split] = {}
        for lang, sums in _by_language(corpora).items():
            figures = {"tokens": sums["tokens"], "unknown": sums["unknown"]}
            tokens[split][data.recipe.data_code(lang)] = figures
    tier = data.tier_of.get(pair) or data.tier_of.get(reversed_pair(pair), "")
    shards = data.shards.get(pair, 0)
    directions = [way for way in data.recipe.trained() if data.training_of(way) == pair]
    row = {"tier": tier, "directions": directions, **counts, "shards": shards, "tokens": tokens}
    if synthetic := sum(data.synthetic.get(way, 0) for way in directions):
        row["back_translated"] = synthetic
    return row


def _by_language(corpora: Iterable[CorpusState]) -> dict[str, Counter[str]]:
    """Return the summed counts of each language's text, with copies."""
    sums: dict[str, Counter[str]] = {}
    for corpus in corpora:
        for side, lang in zip(SIDES, corpus.files.pair.split("-"), strict=True):
            counts = sums.setdefault(lang, Counter())
            for name, count in corpus.tokens.get(side, {}).items():
                counts[name] += count * corpus.files.weight
    return sums


def write_bad_lines(folder: Path, corpora: Iterable[CorpusState]) -> None:
    """Write the list of all unreadable lines into `folder`, if there are any."""
    rows = b"".join(path.read_bytes() for corpus in corpora for path in corpus.bad_lists)
    if rows:
        (folder / BAD_LINES).write_bytes(b"corpus\tfile\tline\treason\texcerpt\n" + rows)


def write_citations(folder: Path, corpora: Sequence[Corpus]) -> None:
    """Write what is to be cited for the corpora into `folder`, with known licences.

    Each publication is written once, after comments that name its corpora.
    """
    about: dict[str, list[str]] = {}
    for corpus in corpora:
        known = [corpus.licence, *corpus.address]
        line = f"% {corpus.name}: {'; '.join(filter(None, known))}"
        for publication in corpus.cite or [""]:
            about.setdefault(publication, []).append(line)
    about.pop("", None)
    entries = ["\n".join([*lines, publication]) for publication, lines in about.items()]
    if entries:
        (folder / CITATIONS).write_text("\n\n".join(entries) + "\n", encoding="utf-8")


def write(folder: Path, report: Report) -> None:
    """Write `report.json`, `report.md` and `report.html` into `folder`."""
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    (folder / "report.json").write_text(text, encoding="utf-8")
    title = f"Report on the corpora of {report['recipe']['name']}"
    page = (title, sections_of(report), ABOUT)
    (folder / "report.md").write_text(markdown_of(*page), encoding="utf-8")
    (folder / "report.html").write_text(page_of(*page), encoding="utf-8")


def of_corpora(data: DataDirectory) -> Report:
    """Return the report on a recipe's corpora, ready for JSON."""
    recipe = data.recipe
    settings = to_jsonable_python(asdict(recipe))
    for name in ("corpora", "path", "known_languages", "of_sources"):  # corpora are reported below
        del settings[name]
    if recipe.codes:
        settings["vocabulary"] |= {"model": None, "dictionary": None}  # temporary files
    else:
        del settings["codes"]
    corpora = {}
    for corpus in data.corpora:
        if not corpus.files.is_drawn:
            corpora[corpus.files.name] = _corpus(corpus)
    languages = _by_language(corpus for corpus in data.corpora if corpus.is_training)
    advice = OF_GIVEN if recipe.vocabulary.model else OF_RECIPE
    vocabulary = {}
    for lang, row in table(dict(sorted(languages.items())), advice).items():
        vocabulary[recipe.data_code(lang)] = row
    return {
        "recipe": settings,
        "corpora": corpora,
        "pairs": {recipe.data_pair(pair): pair_figures(data, pair) for pair in data.splits},
        "symbols": data.vocabulary.symbols,
        "vocabulary": vocabulary,
        "meanings": {"bad": BAD_REASONS, "dropped": RULES},
    }


def _corpus(corpus: CorpusState) -> Report:
    files = corpus.files
    dropped = {rule: corpus.dropped[rule] for rule in RULES if corpus.dropped[rule]}
    samples = {}
    for rule, pairs in corpus.samples.items():
        samples[rule] = [(f"{files.name}:{line}", source, target) for line, source, target in pairs]
    bad_samples = {}
    for reason, lines in corpus.bad_samples.items():
        bad_samples[reason] = [(f"{file}:{line}", excerpt) for file, line, excerpt in lines]
    report = {
        "pair": files.pair,
        "role": files.role.name,
        "files": list(files.names),
        "read": corpus.read,
        "bad": dict(sorted(corpus.bad.items())),
        "bad_samples": bad_samples,
        "dropped": dropped,
        "samples": samples,
        "kept": corpus.kept,
    }
    if corpus.is_training:
        report["drawn"] = corpus.dropped[DRAWN]
    if files.is_synthetic:
        report["kind"] = BACK_TRANSLATED
    if files.weight > 1:
        report["weight"] = files.weight
    return report
