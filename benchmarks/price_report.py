"""The report of `bench_prices.py`: numbers as JSON, tables and sentences as Markdown, a picture.

All that is said of results is computed here from the runs' numbers. Values over seeds are means, in parentheses the
lowest and the highest seed's; differences are taken seed by seed.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from price_memory import NAMES as MEMORY_NAMES
from price_numbers import GROUPS, Numbers, Runs, Spread, change, difference, signs
from price_picture import over_updates
from price_runs import BALANCED, DATA_SETS, DENSE, GREEDY, PRICED, PRICES, WITHIN, DataSet

from fairseq_mtmoe.analysis.scores import ALL
from fairseq_mtmoe.io.files import write_text
from fairseq_mtmoe.io.markdown import markdown_table

METRICS = {"bleu": "BLEU", "chrf": "chrF++"}
WAYS = {GREEDY: "greedy", PRICES: "prices", WITHIN: "balanced within the batch"}
PLACES = ("first", "middle", "last")
NONE = "–"


def write_report(numbers: Sequence[Numbers], stem: Path, command: str) -> None:
    """Write `stem`.json, `stem`.md and `stem`_updates.png."""
    write_text(stem.with_suffix(".json"), json.dumps({"command": command, "runs": numbers}, indent=1) + "\n")
    picture = stem.with_name(f"{stem.name}_updates.png")
    over_updates([(what.title, runs) for what, runs in _of_kind(numbers, BALANCED)]).savefig(picture)
    write_text(stem.with_suffix(".md"), markdown(numbers, command, picture.name))


def markdown(numbers: Sequence[Numbers], command: str, picture: str) -> str:
    """The whole report."""
    balanced, priced = _of_kind(numbers, BALANCED), _of_kind(numbers, PRICED)
    by_name = {what.name: runs for what, runs in balanced}
    lines = [
        "# BASE layers, evaluated at the prices of training",
        "",
        "Balanced assignment gives every expert a price, at which tokens would choose experts by themselves, and "
        "gates remember a running mean of them. In evaluation a token takes the expert with the highest score less "
        "its price (*prices*), that with the highest score, as in the paper (*greedy*), or, as in training, that of an "
        "assignment which is balanced within its batch; a batch of validation holds one language pair.",
        "",
        "Values are means over seeds, in parentheses the lowest and the highest seed's. Differences are taken seed by "
        "seed, between evaluations of the same checkpoints on the same sentences.",
        "",
        *[f"- **{what.title}**: {what.text}. {_schedule(what, runs)}" for what, runs in balanced],
        "",
        "## What came out",
        "",
        *[_verdict(what, runs) for what, runs in balanced],
        *_trained_verdicts(priced, by_name),
        "",
        LIMITS,
        "",
        "## The same checkpoints in three ways",
        "",
        LEGEND,
    ]
    for what, runs in balanced:
        lines += ["", f"### {what.title}", "", _three_ways(runs, Runs.of(numbers, what.name, DENSE))]
    lines += ["", "## Test sets", "", _scores(balanced), "", *_signatures(numbers)]
    lines += ["", "## Over training", "", f"![difference over updates]({picture})", "", *_over_training(balanced)]
    lines += ["", "## The memory", "", *_memory(balanced)]
    if priced:
        lines += ["", "## Training by prices", "", *_trained(priced, by_name)]
    lines += ["", "## How to repeat it", "", *_commands(numbers, command)]
    return "\n".join(lines) + "\n"


LIMITS = (
    "All models are small and stop while their perplexity still falls fast: the size of a difference says little about "
    "long runs. Validation sets are cut; learning rate and number of experts were chosen once and not tuned."
)
LEGEND = (
    "*All*, *high*, *mid*, *low*: validation perplexity. *Least*, *most*: tokens of the least and the most used expert "
    "of any layer, over an even share. *Elsewhere*: share of tokens, over all layers, that go to another expert than "
    "the one with the highest score."
)


def _of_kind(numbers: Sequence[Numbers], kind: str) -> list[tuple[DataSet, Runs]]:
    found = [(what, Runs.of(numbers, what.name, kind)) for what in DATA_SETS]
    return [(what, runs) for what, runs in found if runs]


def _schedule(what: DataSet, runs: Runs) -> str:
    return f"{what.model}; {what.updates:,} updates, {_seeds(runs)}."


def _seeds(runs: Runs) -> str:
    """`seed 1`, or `seeds 1, 2`."""
    return f"seed{'s' * (len(runs.seeds) > 1)} {', '.join(map(str, runs.seeds))}"


def _three_ways(runs: Runs, dense: Runs) -> str:
    columns = ["", *runs.groups, "least", "most", "elsewhere"]
    rows = []
    for way, title in WAYS.items():
        loads = [Spread(runs.last(way, lambda n: min(n["least"]))), Spread(runs.last(way, lambda n: max(n["most"])))]
        moved = Spread(runs.last(way, lambda n: 100 * fmean(n["changed"])))
        ppl = [Spread(runs.perplexity(way, group)).shown(2) for group in runs.groups]
        rows.append([title, *ppl, *(load.shown(2) for load in loads), moved.shown(1, unit="%")])
    if dense:
        rows.append(["dense twin", *(Spread(dense.perplexity(DENSE, g)).shown(2) for g in dense.groups), *[NONE] * 3])
    for way, title in ((PRICES, "prices against greedy"), (WITHIN, "balanced within the batch against greedy")):
        ppl = [change(runs.perplexity(way, g), runs.perplexity(GREEDY, g)).shown(2, "+", "%") for g in runs.groups]
        rows.append([title, *ppl, *[NONE] * 3])
    if dense:
        ours, theirs = _paired(runs, dense)
        ppl = [change(ours.perplexity(PRICES, g), theirs.perplexity(DENSE, g)) for g in runs.groups]
        rows.append(["prices against the dense twin", *(p.shown(2, "+", "%") for p in ppl), *[NONE] * 3])
    return markdown_table(columns, rows)


def _verdict(what: DataSet, runs: Runs) -> str:
    """Which way is better, by how much and in how many seeds."""
    greedy, prices, within = (runs.perplexity(way) for way in WAYS)
    tiers = [
        f"{group} {signs(runs.perplexity(PRICES, group), runs.perplexity(GREEDY, group))}"
        for group in runs.groups
        if group != ALL
    ]
    text = (
        f"- **{what.title}**: at prices, perplexity over all pairs differs from greedy's by "
        f"{change(prices, greedy).shown(2, '+', '%')}, and is lower in {signs(prices, greedy)} seeds (by tier: "
        f"{', '.join(tiers)}); balanced within the batch it differs by {change(within, greedy).shown(2, '+', '%')}, "
        f"lower in {signs(within, greedy)}."
    )
    scored = _scored(runs)
    if scored:
        both = [(scored.scores(PRICES, ALL, m), scored.scores(GREEDY, ALL, m)) for m in METRICS]
        texts = [f"{title} {difference(*b).shown(2, '+')}" for title, b in zip(METRICS.values(), both, strict=True)]
        text += f" At prices less greedily: {', '.join(texts)}, {_seeds(scored)}."
    return text


def _scored(runs: Runs) -> Runs:
    """The runs whose test sets were translated in both ways."""
    return Runs(run for run in runs.runs if len(run.get("scores", {})) == len((GREEDY, PRICES)))


def _scores(balanced: Sequence[tuple[DataSet, Runs]]) -> str:
    rows = []
    scored = [(what, runs) for what, runs in ((what, _scored(runs)) for what, runs in balanced) if runs]
    groups = [group for group in GROUPS if any(group in runs.runs[0]["scores"][GREEDY] for _, runs in scored)]
    for what, runs in scored:
        for metric, title in METRICS.items():
            values = {
                way: {g: runs.scores(way, g, metric) for g in groups if g in runs.runs[0]["scores"][way]}
                for way in (GREEDY, PRICES)
            }
            for way, of_group in values.items():
                cells = [Spread(of_group[g]).shown(2) if g in of_group else NONE for g in groups]
                rows.append([f"{what.title}, {title}, {way}", *cells])
            greedy, prices = values[GREEDY], values[PRICES]
            cells = [difference(prices[g], greedy[g]).shown(2, "+") if g in greedy else NONE for g in groups]
            rows.append([f"{what.title}, {title}, prices less greedy", *cells])
    return markdown_table(["", *groups], rows)


def _signatures(numbers: Sequence[Numbers]) -> list[str]:
    return sorted({f"- `{signature}`" for run in numbers for signature in run.get("signatures", [])})


def _over_training(balanced: Sequence[tuple[DataSet, Runs]]) -> list[str]:
    lines = []
    for what, runs in balanced:
        lower = [u for u in runs.updates() if fmean(runs.against_greedy(u)) < 0]
        differences = [
            f"{update:,}: {Spread(runs.against_greedy(update)).shown(1, '+', '%')}" for update in runs.updates()
        ]
        lines.append(
            f"- **{what.title}**, prices against greedy by update: {'; '.join(differences)}. The mean is below 0 at "
            f"{len(lower)} of {len(runs.updates())} checkpoints."
        )
    return lines


def _memory(balanced: Sequence[tuple[DataSet, Runs]]) -> list[str]:
    measured = [
        (what, Runs(run for run in runs.runs if len(run["memories"]) == len(PLACES))) for what, runs in balanced
    ]
    columns = [(what, runs, place) for what, runs in measured if runs for place in range(len(PLACES))]
    means = {m: [fmean(runs.at_memory(m, place)) for _, runs, place in columns] for m in MEMORY_NAMES}
    late = {m: fmean(values[len(PLACES) - 1 :: len(PLACES)]) for m, values in means.items()}
    over_all = {m: fmean(values) for m, values in means.items()}
    rows = [[m, *(f"{v:+z.2f}" for v in means[m]), f"{late[m]:+z.2f}", f"{over_all[m]:+z.2f}"] for m in MEMORY_NAMES]
    head = ["memory", *(f"{what.title}, {PLACES[place]}" for what, _, place in columns), "last ones", "all"]
    best = [min(MEMORY_NAMES, key=lambda m, i=i: means[m][i]) for i in range(len(columns))]  # type: ignore[misc]
    return [
        "By how many percent validation perplexity, at the mean of the logged prices with each memory, differs from "
        f"greedy's: at the {', the '.join(PLACES)} checkpoint, means over seeds. *Last ones*, *all*: means of "
        f"these columns. *{MEMORY_NAMES[-1]}*: the plain mean of so many updates.",
        "",
        f"{'; '.join(f'{what.title}: {_seeds(runs)}' for what, runs in measured if runs)}.",
        "",
        markdown_table(head, rows),
        "",
        f"Lowest, column by column: {', '.join(best)}. Over the last checkpoints: {min(late, key=late.__getitem__)}; "
        f"over all: {min(over_all, key=over_all.__getitem__)}.",
    ]


def _trained_verdicts(priced: Sequence[tuple[DataSet, Runs]], balanced: dict[str, Runs]) -> list[str]:
    lines = []
    for what, runs in priced:
        ours, theirs = _paired(runs, balanced[what.name])
        both = ours.perplexity(PRICES), theirs.perplexity(PRICES)
        lines.append(
            f"- **{what.title}, trained by prices** instead of balanced: at the end perplexity at prices differs by "
            f"{change(*both).shown(2, '+', '%')}, lower in {signs(*both)} seeds."
        )
    return lines


def _paired(runs: Runs, others: Runs) -> tuple[Runs, Runs]:
    """The runs of the seeds that both have."""
    common = [seed for seed in runs.seeds if seed in others.seeds]
    return runs.with_seeds(common), others.with_seeds(common)


def _trained(priced: Sequence[tuple[DataSet, Runs]], balanced: dict[str, Runs]) -> list[str]:
    rows, loads = [], []
    for what, runs in priced:
        ours, theirs = _paired(runs, balanced[what.name])
        for title, of in (("balanced", theirs), ("prices", ours)):
            cells = [Spread(of.perplexity(way, g)).shown(2) for way in (PRICES, GREEDY) for g in of.groups if
                     way == PRICES or g == ALL]  # fmt: skip
            rows.append([f"{what.title}, {title}", *_aligned(of.groups, cells)])
        ppl = [change(ours.perplexity(PRICES, g), theirs.perplexity(PRICES, g)).shown(2, "+", "%") for g in ours.groups]
        last = change(ours.perplexity(GREEDY), theirs.perplexity(GREEDY)).shown(2, "+", "%")
        rows.append([f"{what.title}, prices against balanced", *_aligned(ours.groups, [*ppl, last])])
        for key, text in (("mean", "mean over updates"), ("highest", "highest of the run")):
            layers = zip(*(run["training_loads"][key] for run in ours.runs), strict=True)
            loads.append([f"{what.title}, {text}", "; ".join(Spread(layer).shown(2) for layer in layers)])
    return [
        "Batches routed by score less running price, from the second update on, against balanced ones; the same "
        "updates and seeds. Evaluated at prices, and greedily over all pairs.",
        "",
        markdown_table(["trained", *GROUPS, "all, greedy"], rows),
        "",
        "Load of the fullest expert of each layer in training by prices, over an even share:",
        "",
        markdown_table(["", "layers, from the encoder's first to the decoder's last"], loads),
    ]


def _aligned(groups: Sequence[str], cells: Sequence[str]) -> list[str]:
    """Cells of these groups and one more, with a dash in the place of a tier that there is not."""
    by_group = dict(zip(groups, cells, strict=False))
    return [*(by_group.get(group, NONE) for group in GROUPS), cells[-1]]


def _commands(numbers: Sequence[Numbers], command: str) -> list[str]:
    """Hardware, versions and commits, each once; the benchmark's command, and the first run's of each kind."""
    commits = ", ".join(dict.fromkeys(run["commit"] for run in numbers))
    hardware = ", ".join(dict.fromkeys(run["hardware"] for run in numbers))
    versions = ", ".join(f"{package} {number}" for package, number in numbers[0]["versions"].items())
    first = {(run["data_set"], run["kind"]): run["command"] for run in reversed(numbers)}
    scored = [run[f"score_command_{PRICES}"] for run in numbers if f"score_command_{PRICES}" in run]
    return [
        f"`{command}`; commits of the runs: {commits}. {hardware}, one thread. {versions}. The runs that it starts, "
        "the same for every seed but for `--seed`:",
        "",
        "```",
        *[shlex.join(words) for _, words in sorted(first.items())],
        *[shlex.join(words) for words in scored[:1]],
        "```",
    ]
