"""README's tables of PEMT's study: of whatever runs of `compare_pemt.py` are there, with every figure in them.

`figures.py --write` writes them. A row stands in a table as soon as one of its seeds has a score in every column.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from readme_tables import Cell, Row, Table, lines
from report_glue import beyond_chance, mixtures

from fairseq_mtmoe.analysis.comparison import RunScores, Spread, System, difference, spread, spreads, system_of
from fairseq_mtmoe.analysis.scores import ALL

BLOCK = "borrowing"
LORA = "lora"  # what all others are compared with
ROWS = {
    LORA: "LoRA",
    "full": "full fine-tuning",
    "pemt": "PEMT, 4 sources",
    "sources_2": "PEMT, 2 sources",
    "sources_1": "PEMT, 1 source",
    "no_description": "PEMT, prompts that begin at random",
    "no_correlation": "PEMT without prompts",
    "target_adapter": "target adapters alone",
    "bottleneck": "PEMT with bottlenecks for LoRA",
    "gate_activations": "PEMT, the gate of its authors' code",
}
LANGUAGE_ROWS = {
    LORA: "LoRA",
    "full": "full fine-tuning",
    "target_adapter": "target adapters alone",
    "relatives": "PEMT from Spanish and Portuguese",
    "others": "PEMT from Finnish and Turkish",
    "pemt": "PEMT from all four",
}
OF_TASKS, OF_LANGUAGES = "PEMT on MiniLM", "PEMT for languages"
PERPLEXITY, CHRF, BLEU = "perplexity", "chrF++", "BLEU"
ABOVE, OF_PAPER = "above LoRA", "in the paper"
LANGUAGES = (
    "Languages: a translator of ML-50's English to Galician (1,200 pairs), Spanish, Portuguese, Finnish and Turkish, "
    "kept as it is, then 300 updates on Galician. Perplexity is validation's, and the lower the better; chrF++ and "
    "BLEU are the test set's, and hardly those of translations. [Curves, "
    "commands](benchmarks/results/training_pemt_languages.md)."
)
HOW = "Differences from LoRA are between runs of the same seed."
WEIGHT = (
    "Of no target does a source weigh more than {} in the mean over layers; in the paper (figure 4) one has more than "
    "half."
)


@dataclass(frozen=True)
class BesideLora(Table):
    """Systems beside LoRA.

    Attributes:
        largest_weight: of a source, such as `33%`; empty where it is not known.
    """

    largest_weight: str = ""

    def figures(self) -> Iterator[tuple[str, str]]:
        yield from super().figures()
        if self.largest_weight:
            yield f"{self.name}, largest weight of a source", self.largest_weight

    def markdown(self) -> str:
        """The table, and what it says of LoRA."""
        return f"{super().markdown()}\n\n{lines(self.judgement())}"

    def judgement(self) -> str:
        """Which rows differ from LoRA by more than chance does."""
        rows = [(row.title, cell) for row in self.rows for column, cell in row.cells.items() if column.endswith(ABOVE)]
        known = [(title, cell) for title, cell in rows if not math.isnan(cell.error)]
        parts = {
            "Higher than LoRA": [title for title, cell in known if cell.is_starred and cell.mean > 0],
            "Lower": [title for title, cell in known if cell.is_starred and cell.mean < 0],
            "No difference shown": [title for title, cell in known if not cell.is_starred],
            "One seed, not judged": [title for title, cell in rows if math.isnan(cell.error)],
        }
        found = [f"{what}: {'; '.join(titles)}." for what, titles in parts.items() if titles]
        if self.largest_weight:
            found.append(WEIGHT.format(self.largest_weight))
        return " ".join(found)


def tables_of_tasks(content: Mapping[str, Any]) -> list[BesideLora]:
    """All training examples, and few of them, of what `compare_pemt.py text` wrote."""
    whole, few = [], []
    for stage in map(int, content["settings"]["sections"]):
        systems = _with_all_targets(content, stage)
        if stage == 1:
            tasks = {name: title for system in systems[:1] for name, title in system.runs[0].titles.items()}
            whole = _rows(systems, ROWS, {**tasks, ALL: ALL}, ALL)
            whole = [_beside_the_paper(row, content["settings"]["paper"]) for row in whole]
        elif stage > 1:
            few += _rows(systems, {name: f"{title}, {stage} examples" for name, title in ROWS.items()}, {ALL: ALL}, ALL)
    largest = _largest_weight(content["runs"].values())
    tables = [BesideLora(OF_TASKS, "all examples", whole, largest), BesideLora(OF_TASKS, "few examples", few)]
    return [table for table in tables if table.rows]


def controls(content: Mapping[str, Any]) -> Iterator[tuple[str, Cell]]:
    """PEMT beside what isolates borrowing: target adapters alone, and LoRA without STS-B, whose gain is the largest."""
    for stage in map(int, content["settings"]["sections"]):
        systems = {system.name: system for system in _with_all_targets(content, stage)}
        if stage == 1 and {"pemt", "target_adapter"} <= systems.keys():
            above = difference(systems["target_adapter"], systems["pemt"])
            yield "above target adapters", _one_digit(above.scores[ALL])
        elif stage > 1 and {"pemt", LORA} <= systems.keys():
            others = [task for task in systems["pemt"].runs[0].scores if task != "stsb"]
            pairs = zip(systems["pemt"].runs, systems[LORA].runs, strict=True)
            above = spread([fmean(one.scores[t] - other.scores[t] for t in others) for one, other in pairs])
            yield f"{stage} examples, above LoRA without STS-B", _one_digit(above)


def _one_digit(found: Spread) -> Cell:
    return Cell(found.mean, found.standard_error, is_difference=True, digits=1)


def _largest_weight(records: Iterable[Mapping[str, Any]]) -> str:
    """Of all sources and targets, in percent, the mean over seeds."""
    weights: dict[tuple[str, str], list[float]] = {}
    for record in records:
        for source, weight in record.get("weights", {}).items():
            weights.setdefault((record["tasks"][0], source), []).append(weight)
    return f"{100 * max(map(fmean, weights.values())):.0f}%" if weights else ""


def table_of_languages(runs: Iterable[Mapping[str, Any]]) -> BesideLora:
    """What `compare_pemt.py languages` wrote, of the runs whose test set was scored."""
    found: dict[str, list[RunScores]] = {}
    for run in runs:
        if run["scores"]:
            averages = run["scores"]["averages"][ALL]
            scores = {PERPLEXITY: min(run["perplexity"][ALL]), CHRF: averages["chrf"], BLEU: averages["bleu"]}
            found.setdefault(run["system"], []).append(RunScores((), (), run["seed"], "", scores, {}, {}, {}))
    systems = [system_of(name, of_system) for name, of_system in found.items()]
    columns = {name: name for name in (PERPLEXITY, CHRF, BLEU)}
    return BesideLora(OF_LANGUAGES, "English to Galician", _rows(systems, LANGUAGE_ROWS, columns, PERPLEXITY))


def _with_all_targets(content: Mapping[str, Any], stage: int) -> list[System]:
    """The systems of a stage, each of the seeds that have a score of every target."""
    kind = mixtures(content["runs"].values(), stage)
    targets = set(content["settings"]["targets"])
    return [] if kind is None else [system for system in kind.systems if set(system.runs[0].scores) == targets]


def _rows(systems: Sequence[System], titles: Mapping[str, str], columns: Mapping[str, str], compared: str) -> list[Row]:
    """A row for each system that has a title, in the titles' order; `compared` is the figure beside LoRA's."""
    by_name = {system.name: system for system in systems}
    rows = []
    for name, title in titles.items():
        if name not in by_name:
            continue
        found = spreads(by_name[name])
        cells = {shown: Cell(found[key].mean, found[key].standard_error) for key, shown in columns.items()}
        if name != LORA and LORA in by_name:
            cells |= _above(by_name[LORA], by_name[name], compared, columns[compared])
        rows.append(Row(title, len(by_name[name].runs), cells))
    return rows


def _above(lora: System, system: System, compared: str, column: str) -> dict[str, Cell]:
    """The mean of differences with the same seed, if there are some."""
    found = difference(lora, system)
    value, count = found.scores[compared], len(found.seeds)
    if not count:
        return {}
    return {f"{column}, {ABOVE}": Cell(value.mean, value.standard_error, True, beyond_chance(value, count))}


def _beside_the_paper(row: Row, paper: Mapping[str, Mapping[str, float]]) -> Row:
    """With how far its figure lies above its LoRA's."""
    name = next(name for name, title in ROWS.items() if title == row.title)
    if name == LORA or name not in paper:
        return row
    above = Cell(paper[name][ALL] - paper[LORA][ALL], is_difference=True)
    return Row(row.title, row.seeds, {**row.cells, OF_PAPER: above})


def block_of(tables: Sequence[BesideLora]) -> str:
    """All tables as README has them."""
    parts = [lines(HOW)]
    for table in tables:
        parts += [*([lines(LANGUAGES)] if table.name == OF_LANGUAGES else []), table.markdown()]
    return "\n\n".join(parts)
