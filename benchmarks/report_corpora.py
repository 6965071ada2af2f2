"""What `mtmoe prepare corpora` finds in real text, and what that takes, from nothing.

    python benchmarks/report_corpora.py RAW DATA NAME --recipe folder

prepares DATA of RAW and writes `results/corpora_NAME.md` and `.json`: of each language pair the lines that were read,
kept and left out by each rule, what the vocabulary makes of each language, and the seconds of each stage. No text of
RAW is in them. Time and memory are taken as in `bench_prepare.py`, of all processes of the command; what stages took is
read in the log of its work folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from bench_prepare import BIN, Run, measured, run, size_of
from measure import Report

from fairseq_mtmoe.data.corpora.cleaning.cleaner import RULES
from fairseq_mtmoe.data.corpora.page import figures
from fairseq_mtmoe.data.corpora.page.figures import Flow, findings
from fairseq_mtmoe.io.files import read_json, read_text

ASKED_FOR = ("held_out", "duplicate", "near_duplicate")  # rules that have a column though they left nothing out
OF_PAIR = ("tier", "train", "valid", "test", "shards")
OF_LANGUAGE = ("pieces_per_word", "characters_per_piece", "unknown_share", "coverage", "warning")
# Of the log, behind its date and time: what a stage has done, or its seconds, and no other remark.
LINE = re.compile(r"\S+ \S+ (?P<label>[^:]+): (?P<said>[\d,]+(?: of [\d,]+)? \S+, [\d,]+ .*|\d+ s)")
RATE = re.compile(r"(?P<done>[\d,]+)(?: of [\d,]+)? (?P<unit>\S+), (?P<rate>[\d,]+) ")


@dataclass(frozen=True)
class Stage:
    """What the log says of one at its end; without `unit` it was one long call."""

    label: str
    seconds: float
    done: int = 0
    unit: str = ""
    per_second: int = 0


def stages(log: str) -> list[Stage]:
    """All of them, in order, from the log of a run that none came before."""
    last = {found["label"]: found["said"] for found in map(LINE.fullmatch, log.splitlines()) if found}
    return [_stage(label, said) for label, said in last.items()]


def _stage(label: str, said: str) -> Stage:
    found = RATE.match(said)
    if found is None:
        return Stage(label, float(said.removesuffix(" s")))
    done, rate = (int(found[name].replace(",", "")) for name in ("done", "rate"))
    return Stage(label, done / max(rate, 1), done, found["unit"], rate)


def findings_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """What a `report.json` says, without its samples of text.

    Pairs are named as the corpora name them in `training`, as DATA does in `pairs`.
    """
    evaluation = figures.flow_of(corpus for corpus in report["corpora"].values() if corpus["role"] != figures.TRAIN)
    return {
        "recipe": report["recipe"],
        "training": {name: _of_flow(flow) for name, flow in figures.flows(report).items()},
        "all": _of_flow(figures.training(report)),
        "evaluation": _of_flow(evaluation),
        "pairs": {name: _of_pair(pair) for name, pair in figures.largest_first(report)},
        "vocabulary": {lang: {name: row[name] for name in OF_LANGUAGE} for lang, row in report["vocabulary"].items()},
        "to_look_at": findings(report),
    }


def _of_flow(flow: Flow) -> dict[str, Any]:
    dropped = {rule: flow.dropped[rule] for rule in RULES}
    return {"lines": flow.lines, "bad": dict(flow.bad), "dropped": dropped, "drawn": flow.drawn, "kept": flow.kept}


def _of_pair(pair: Mapping[str, Any]) -> dict[str, Any]:
    return {**{name: pair[name] for name in OF_PAIR}, "unknown_share": figures.unknown_share([pair])}


def show_cost(report: Report, pairs: int, one: Run, found: Sequence[Stage], sizes: Mapping[str, int]) -> None:
    columns = ["", "pairs/s", "seconds", "of processors", "peak MB", *(f"{name}, MB" for name in sizes)]
    row = [pairs / one.seconds, one.seconds, one.cpu_seconds, one.peak_mb, *(size / 2**20 for size in sizes.values())]
    report.table(f"{pairs:,} pairs", columns, [["from nothing to shards", *row]])
    rest = Stage("starting, and the report", one.seconds - sum(stage.seconds for stage in found))
    rows = [[stage.label, stage.seconds, *_amounts(stage)] for stage in (*found, rest)]
    report.table("Stages", ["", "seconds", "of", "per second"], rows)


def _amounts(stage: Stage) -> tuple[str, str]:
    return (f"{stage.done:,} {stage.unit}", f"{stage.per_second:,}") if stage.unit else ("", "")


def show_text(report: Report, found: Mapping[str, Any]) -> None:
    """What became of the lines of each pair, what is trained on, and what the vocabulary makes of each language."""
    rules = [rule for rule in RULES if found["all"]["dropped"][rule] or rule in ASKED_FOR]
    columns = ["pair", "lines", "drawn", "kept", "bad", *(f"−{rule}" for rule in rules)]
    counted = {**found["training"], "all": found["all"]}
    rows = [[name, *_of_lines(one, rules)] for name, one in counted.items()]
    report.table("Training text", columns, rows, " ".join(f"−{rule}: {RULES[rule]}." for rule in rules))
    columns = ["pair", *OF_PAIR, "unknown"]
    note = "Unknown: the share of test tokens, both sides, that the vocabulary does not have."
    report.table("Data", columns, [[name, *_cells_of_pair(pair)] for name, pair in found["pairs"].items()], note)
    columns = ["language", "pieces per word", "characters per piece", "unknown", "characters covered", "to look at"]
    rows = [[lang, *_cells_of_language(row)] for lang, row in found["vocabulary"].items()]
    report.table("Vocabulary, on training text", columns, rows)


def _cells_of_pair(pair: Mapping[str, Any]) -> list[str]:
    values = (pair[name] for name in OF_PAIR)
    return [
        *(value if isinstance(value, str) else f"{value:,}" for value in values),
        _percent(pair["unknown_share"], 2),
    ]


def _cells_of_language(row: Mapping[str, Any]) -> list[str]:
    pieces, shares = OF_LANGUAGE[:2], OF_LANGUAGE[2:4]
    numbers = ["" if row[name] is None else f"{row[name]:.2f}" for name in pieces]
    return [*numbers, *(_percent(row[name], 3) for name in shares), row["warning"] or ""]


def _of_lines(one: Mapping[str, Any], rules: Sequence[str]) -> list[str]:
    counts = [
        one["lines"],
        one["drawn"],
        one["kept"],
        sum(one["bad"].values()),
        *(one["dropped"][rule] for rule in rules),
    ]
    return [f"{count:,}" for count in counts]


def _percent(share: float | None, digits: int) -> str:
    return "" if share is None else f"{share:.{digits}%}"


@click.command()
@click.argument("raw", type=click.Path(path_type=Path))
@click.argument("data", type=click.Path(path_type=Path))
@click.argument("name")
@click.option("--recipe", default="folder", show_default=True, help="As of `mtmoe prepare corpora`.")
@click.option("--workers", default=2, show_default=True, help="Processes.")
def main(raw: Path, data: Path, name: str, recipe: str, workers: int) -> None:
    """Prepare DATA, which must not be there yet, of RAW, and write benchmarks/results/corpora_NAME.md and .json."""
    work = data.with_name(f".{data.name}.work")
    for folder in (data, work):
        if folder.exists():
            raise click.UsageError(f"{folder} must not be there yet: what is measured begins with nothing.")
    report = Report(f"corpora_{name}", f"What `mtmoe prepare corpora` finds in {name}")
    command = ("prepare", "corpora", raw, data, "--recipe", recipe, "--workers", workers)
    one = measured(lambda: run(BIN / "mtmoe", *command))
    content = read_json(data / "report.json")
    found, took = findings_of(content), stages(read_text(work / "log.txt"))
    report.text(f"`mtmoe {' '.join(map(str, command))}`, in whose report is to look at first:")
    report.text("\n".join(f"- {sentence}" for sentence in found["to_look_at"] or ["nothing"]))
    sizes = {"RAW": size_of(raw), "DATA": size_of(data), "work folder": size_of(work)}
    show_cost(report, found["all"]["lines"] + found["evaluation"]["lines"], one, took, sizes)
    show_text(report, found)
    settings = figures.settings_of(content["recipe"]).items()
    report.text("\n".join(["## Recipe", "", *(f"- {key}: {value}" for key, value in settings)]))
    report.raw("text", found)
    report.raw("cost", {**asdict(one), "workers": workers, "bytes": sizes, "stages": [asdict(stage) for stage in took]})
    report.finish(write=True, check=False)


if __name__ == "__main__":
    main()
