"""Every figure that README and the texts in `results/` quote, computed from the JSON that benchmarks wrote.

    python benchmarks/figures.py --write

writes `results/figures.json`: for each text, each figure's name and how it is shown; and README's tables of PEMT's
study, of the runs that are there. A test computes all of it anew and compares: the JSON with what the script says, and
the texts with the JSON. Each figure is rounded once, from the raw value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from itertools import chain
from statistics import fmean, median, pstdev, stdev
from typing import Any

import click
from added_runs import with_added
from measure import RESULTS, ROOT
from pemt_tables import BLOCK as BORROWING
from pemt_tables import BesideLora, block_of, controls, table_of_languages, tables_of_tasks
from readme_tables import Table, in_text
from report_glue import Kind, mixtures, new_tasks
from sparse_tables import beside_base, beside_dense, of_the_paper, results_of
from timing import Ratio
from training_report import RunResult

from fairseq_mtmoe.analysis.comparison import Difference, Spread, difference, spread, spreads
from fairseq_mtmoe.analysis.task_scores import ALL, SMALL
from fairseq_mtmoe.data.translation.tiers import FROM_LOW
from fairseq_mtmoe.io.files import write_text

FIGURES = RESULTS / "figures.json"
README = ROOT / "README.md"
SPARSE_PAYS, SPARSE_SCALING = "training_sparse_wmt15", "training_sparse_wmt15_scaling"
SPARSE_WHY, SPARSE_ML50 = "training_sparse_wmt15_untold", "training_sparse_ml50"
SPARSE_CATALOGS = "training_sparse_catalogs"
PEMT, PEMT_LANGUAGES = "training_pemt_encoder", "training_pemt_languages"
TIERS = (*FROM_LOW, "all")
UPDATE = 1120  # at which both seeds of all systems of the captions were validated
SLOWER_UPDATE = 320  # the last at which those that choose by uncertainty were validated in every run
Figures = dict[str, str]


def read(name: str) -> Any:
    """The content of `results/NAME.json`."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


class Training:
    """The runs of one data set: means over seeds."""

    def __init__(self, name: str) -> None:
        self._runs = read(f"training_{name}")
        self.systems = list(dict.fromkeys(run["system"] for run in self._runs))

    def seeds(self, system: str) -> list[dict[str, Any]]:
        """A system's runs, in the order of their seeds."""
        return sorted((run for run in self._runs if run["system"] == system), key=lambda run: int(run["seed"]))

    def mean(self, system: str, value: Callable[[dict[str, Any]], float]) -> float:
        """The mean over a system's seeds."""
        return fmean(map(value, self.seeds(system)))

    def best(self, system: str, group: str) -> float:
        """The lowest validation perplexity of a tier, or over all."""
        return self.mean(system, lambda run: min(run["perplexity"][group]))

    def bleu(self, system: str, group: str) -> float:
        """BLEU of the test sets of a tier, or over all."""
        return self.mean(system, lambda run: run["scores"]["averages"][group]["bleu"])

    def changes(self, system: str, other: str) -> list[float]:
        """By how many percent a system's best perplexity over all is above another's, seed by seed."""
        pairs = zip(self.seeds(system), self.seeds(other), strict=True)
        return [100 * (min(one["perplexity"]["all"]) / min(two["perplexity"]["all"]) - 1) for one, two in pairs]

    def at_update(self, system: str, update: int) -> float:
        """The validation perplexity over all at an update."""
        return self.mean(system, lambda run: run["perplexity"]["all"][run["updates"].index(update)])


def of_floors(name: str) -> dict[str, float]:
    """The figures with floors of a benchmark's report."""
    return {row["what"]: row["value"] for row in read(name)["floors"]}


def step_ratio(own: str, peer: str) -> float:
    """Tokens per second of one row of step.json over another's, turn by turn."""
    seconds = read("step")["raw"]["seconds"]
    return Ratio.of(seconds[peer], seconds[own]).median


def speeds(kind: str, count: int) -> float:
    """Tokens per second, sparse over stock, in so many processes (scaling.json), update by update."""

    def totals(system: str) -> list[float]:
        steps = [process["steps"][f"{kind}, {system}"] for process in read("scaling")["raw"][f"{count} processes"]]
        return [sum(s["tokens"] for s in turn) / max(s["seconds"] for s in turn) for turn in zip(*steps, strict=True)]

    return Ratio.of(totals("base_moe_wmt15"), totals("stock fairseq transformer")).median


SPARSE, STOCK = "base_moe_wmt15", "stock fairseq transformer"
SPARSE_THEIRS, STOCK_OURS = f"{SPARSE}, fairseq's loss and Adam", f"{STOCK}, our loss and Adam"
SAME_BATCH, SAME_GLOBAL = "same batch per process", "same global batch"


def costs() -> Iterator[tuple[str, str]]:
    """What sparseness costs, beside stock fairseq."""
    layer, decode, assignment, epoch = map(of_floors, ("layer", "decode", "assignment", "epoch"))
    for gate in ("BASE", "task"):
        for experts in (8, 32):
            value = layer[f"ours, {gate} gate, {experts} experts: time / dense"]
            yield f"layer, {gate} gate, {experts} experts: time / dense layer", f"{value:.2f}"
    yield "step: both with fairseq's loss and Adam", f"{step_ratio(SPARSE_THEIRS, STOCK):.2f}"
    yield "step: both with our loss and Adam", f"{step_ratio(SPARSE, STOCK_OURS):.2f}"
    yield "step: ours with our loss and Adam, stock with fairseq's", f"{step_ratio(SPARSE, STOCK):.2f}"
    for kind in (SAME_BATCH, SAME_GLOBAL):
        for count in (2, 4):
            yield f"{count} processes, {kind}", f"{speeds(kind, count):.2f}"
    for sentences in (8, 32):
        value = decode[f"sentences/s, {SPARSE}, experts that differ / {STOCK}, {sentences} sentences"]
        yield f"generation, {sentences} sentences", f"{value:.2f}"
    yield "assignment: median time / libbase", f"{assignment['time / libbase, median over all scores']:.2f}"
    yield "assignment: largest time / libbase", f"{assignment['time / libbase, largest']:.2f}"
    yield "epoch of 10M pairs: time / fairseq", f"{epoch['10M pairs, all drawn: time, ours / fairseq']:.2f}"
    yield from encoder_costs()


def encoder_costs() -> Iterator[tuple[str, str]]:
    """Training steps of multi-task encoders."""
    glue, conditional = of_floors("glue"), of_floors("conditional")
    for lengths in ("GLUE's lengths", "128 tokens"):
        for own, other in (("mt_tag_minilm", "mt_dense_minilm"), ("mt_dense_minilm", "Hugging Face's BertModel")):
            yield f"{lengths}: {own} / {other}", f"{glue[f'step, {lengths}: {own} / {other}']:.2f}"
        for own, other in (
            ("mt_dense, half frozen", "mt_dense"),
            ("ca_mtl, half frozen", "ca_mtl, nothing frozen"),
        ):
            yield f"{lengths}: {own} / {other}", f"{conditional[f'step, {lengths}: {own} / {other}']:.2f}"


def adapter_costs() -> Iterator[tuple[str, str]]:
    """What borrowing costs, beside plain LoRA."""
    adapters = of_floors("adapters")
    for what in ("step: 6 sources", "memory: 6 sources", "generation: 6 sources", "generation: 6 sources, merged"):
        yield f"T5 base, {what} / LoRA", f"{adapters[f'{what} / LoRA (peft)']:.2f}"


def study(name: str) -> tuple[Kind, Kind]:
    """A study's mixtures, and its runs on new tasks."""
    records = list(read(name)["runs"].values())
    first, second = mixtures(records), new_tasks(records)
    assert first is not None and second is not None
    return first, second


def of_new_tasks(kind: Kind) -> Iterator[tuple[str, str]]:
    """Each system's scores on new tasks."""
    for system in kind.systems:
        for column, found in spreads(system).items():
            yield from mean_over_seeds(f"{system.name}, {column}", found)


def understanding() -> Iterator[tuple[str, str]]:
    """MT-TaG and its peers: averages of the mixtures, what they are above MT-Dense, scores on new tasks."""
    first, second = study("training_glue")
    dense = first.systems[0]
    for system in first.systems:
        for group in (SMALL, ALL):
            yield from mean_over_seeds(f"GLUE, {system.name}, {group}", spreads(system)[group])
        if system is not dense:
            yield from mean_and_error(f"GLUE, {system.name} above {dense.name}, {ALL}", difference(dense, system), ALL)
    yield from of_new_tasks(second)


def conditional() -> Iterator[tuple[str, str]]:
    """CA-MTL, row by row of table 1, and a new task from few examples."""
    first, second = study("training_ca_mtl")
    start = first.systems[0]
    for system in first.systems:
        name = f"CA-MTL's tasks, {system.name}"
        yield from mean_over_seeds(f"{name}, {ALL}", spreads(system)[ALL])
        across = spread([pstdev(run.scores.values()) for run in system.runs])
        yield from mean_over_seeds(f"{name}, across tasks", across)
        shares = [100 * record["share_of_data"] for record in first.of(system) if len(record["tasks"]) > 1]
        if shares:
            yield f"{name}, percent of the data", f"{fmean(shares):.1f}"
        if system is not start:
            yield from mean_and_error(f"{name}, {ALL}, above {start.name}", difference(start, system), ALL)
    yield from of_new_tasks(second)


def conditional_translation() -> Iterator[tuple[str, str]]:
    """Uncertainty and conditional norms in translation: perplexity by tier, and over all beside temperature."""
    training = Training("ca_mtl_multi30k")
    for system in training.systems:
        name = f"captions in 2 minutes, {system}"
        for group in TIERS:
            yield f"{name}, {group}: perplexity", f"{training.best(system, group):.1f}"
        shares = [100 * run["share_of_data"] for run in training.seeds(system) if "share_of_data" in run]
        if shares:
            yield f"{name}: percent of the data", f"{fmean(shares):.1f}"
        if "_" in system:
            changes = training.changes(system, system.split("_")[0])
            yield f"{name}: percent to temperature", f"{fmean(changes):+.1f}"
            yield f"{name}: standard error of that", f"{stdev(changes) / math.sqrt(len(changes)):.1f}"
    for system in ("dense", "dense_uncertainty"):
        value = training.at_update(system, SLOWER_UPDATE)
        yield f"captions in 2 minutes, {system}, all at {SLOWER_UPDATE}: perplexity", f"{value:.1f}"


def pemt_tables() -> list[BesideLora]:
    """PEMT's study on an encoder, and on languages where there are results of it."""
    languages = [table_of_languages(read(PEMT_LANGUAGES))] if (RESULTS / f"{PEMT_LANGUAGES}.json").exists() else []
    return tables_of_tasks(read(PEMT)) + [table for table in languages if table.rows]


def borrowing() -> Iterator[tuple[str, str]]:
    """PEMT and its peers: every figure of README's tables, which are made of the runs that are there."""
    for table in pemt_tables():
        yield from table.figures()
    for name, cell in controls(read(PEMT)):
        yield from cell.figures(f"PEMT on MiniLM, {name}")


def sparse_tables() -> dict[str, Table]:
    """Sparse models beside dense ones, and one change at a time to BASE, of the studies that there are."""
    made = {
        SPARSE_PAYS: beside_dense,
        SPARSE_SCALING: beside_dense,
        SPARSE_WHY: beside_base,
        SPARSE_CATALOGS: of_the_paper,
        SPARSE_ML50: beside_dense,
    }
    return {
        name: table(name.removeprefix("training_"), sparse_runs(name))
        for name, table in made.items()
        if (RESULTS / f"{name}.json").exists()
    }


def sparse_runs(name: str) -> list[RunResult]:
    """Those of a study, and those that were added to it later."""
    return results_of(with_added(RESULTS / f"{name}.json", read(name)))


def sparse() -> Iterator[tuple[str, str]]:
    """Every figure of README's tables of sparse models beside dense ones."""
    for table in sparse_tables().values():
        yield from table.figures()


def mean_and_error(name: str, above: Difference, group: str) -> Iterator[tuple[str, str]]:
    """Of differences with the same seed."""
    found = above.scores[group]
    yield f"{name}: mean", f"{found.mean:+.2f}"
    yield f"{name}: standard error", f"{found.standard_error:.2f}"


def mean_over_seeds(name: str, found: Spread) -> Iterator[tuple[str, str]]:
    """With its standard error."""
    yield f"{name}: mean", f"{found.mean:.1f}"
    yield f"{name}: standard error", f"{found.standard_error:.1f}"


def captions() -> Iterator[tuple[str, str]]:
    """The captions' table: perplexities by tier, and over all at one update."""
    training = Training("multi30k")
    for system in training.systems:
        for group in TIERS:
            yield f"captions, {system}, {group}: perplexity", f"{training.best(system, group):.1f}"
        yield f"captions, {system}, all at {UPDATE}: perplexity", f"{training.at_update(system, UPDATE):.1f}"


def prices() -> Iterator[tuple[str, str]]:
    """BASE layers evaluated by prices and greedily: perplexity over all at the end of the runs of `bench_prices.py`."""
    runs = [run for run in read("prices")["runs"] if run["kind"] == "balanced"]
    for name in dict.fromkeys(run["data_set"] for run in runs):
        ends = [run["ways"][max(run["ways"], key=int)] for run in runs if run["data_set"] == name]
        ways = {way: [end[way]["perplexity"]["all"] for end in ends] for way in ("greedy", "prices")}
        lower = [100 * (1 - own / other) for own, other in zip(ways["prices"], ways["greedy"], strict=True)]
        for way, values in ways.items():
            yield f"prices: {name}, {way}: perplexity", f"{fmean(values):.1f}"
        for what, value in (("mean", fmean(lower)), ("least", min(lower)), ("most", max(lower))):
            yield f"prices: {name}, percent lower, {what}", f"{value:.1f}"


def evaluating() -> Iterator[tuple[str, str]]:
    """The test sets of many directions, beside fairseq-generate's loop."""
    found = of_floors("evaluate")
    for sentences in ("1,000", "30"):
        value = found[f"times as fast, {sentences} sentences a direction"]
        yield f"evaluating 50 directions of {sentences} sentences: times as fast", f"{value:.2f}"


def preparing() -> Iterator[tuple[str, str]]:
    """From raw text to shards, beside SentencePiece and fairseq's preprocessing, and the memory of many pairs."""
    pairs, many = "2,000,000 pairs", "50,000,000 pairs"
    found = of_floors("prepare")
    ratio = found[f"throughput, ours with its vocabulary / the peer's, {pairs}"]
    yield f"preparing {pairs}: throughput / the peer's", f"{ratio:.1f}"
    yield f"preparing {many}: peak GB", f"{of_floors('prepare_memory')[f'peak MB, {many}'] / 1024:.2f}"


def corpora() -> Iterator[tuple[str, str]]:
    """What `prepare corpora` makes of real text, by `report_corpora.py`, and what that takes."""
    for name in ("wmt15", "ml50"):
        raw = read(f"corpora_{name}")["raw"]
        text, cost = raw["text"], raw["cost"]
        languages, lines = text["vocabulary"], text["all"]["lines"]
        words = {lang: row["pieces_per_word"] for lang, row in languages.items() if row["pieces_per_word"]}
        seconds = {stage["label"]: stage["seconds"] for stage in cost["stages"]}
        yield f"{name}: thousand pairs", f"{lines / 1000:.1f}"
        yield f"{name}: percent left out", f"{100 * (1 - text['all']['kept'] / lines):.3f}"
        yield f"{name}: pieces per word, English", f"{words['en']:.2f}"
        yield f"{name}: pieces per word, most", f"{max(words.values()):.2f}"
        yield f"{name}: percent unknown, most", f"{100 * max(row['unknown_share'] for row in languages.values()):.2f}"
        yield f"{name}: minutes", f"{cost['seconds'] / 60:.1f}"
        yield f"{name}: minutes of the vocabulary", f"{seconds['Making the vocabulary'] / 60:.1f}"
        yield f"{name}: peak GB", f"{cost['peak_mb'] / 1024:.2f}"


def readme() -> Figures:
    """The section Results of the README."""
    training = (
        sparse(),
        captions(),
        prices(),
        understanding(),
        conditional(),
        conditional_translation(),
        borrowing(),
        costs(),
    )
    return dict(chain(*training, adapter_costs(), evaluating(), preparing(), corpora()))


def training_text() -> Figures:
    """`results/training.md`."""
    captions_, news = Training("multi30k"), Training("wmt15_small")
    found = {}
    for system in captions_.systems:
        best = captions_.best(system, "all")
        found[f"captions, {system}: perplexity"] = f"{best:.1f}"
        found[f"captions, {system}, low: perplexity"] = f"{captions_.best(system, 'low'):.1f}"
        found[f"captions, {system}: BLEU"] = f"{captions_.bleu(system, 'all'):.1f}"
        found[f"captions, {system}: perplexity at {UPDATE}"] = f"{captions_.at_update(system, UPDATE):.1f}"
        if system != "base":
            found[f"captions, {system}: against BASE"] = f"{100 * (best / captions_.best('base', 'all') - 1):+.0f}%"
    for system in ("base", "base_heated"):
        for run in captions_.seeds(system):
            found[f"captions, {system}, seed {run['seed']}: perplexity"] = f"{min(run['perplexity']['all']):.1f}"
    for system in news.systems:
        found[f"news, {system}: perplexity"] = f"{news.best(system, 'all'):.1f}"
        found[f"news, {system}, low: perplexity"] = f"{news.best(system, 'low'):.1f}"
    dense, base = (captions_.mean(system, lambda run: run["updates"][-1]) for system in ("dense", "base"))
    found["captions: updates in the same minutes, dense over BASE"] = f"{100 * (dense / base - 1):.0f}%"
    return found


def speed_text() -> Figures:
    """`results/speed.md`."""
    layer, decode, epoch = map(of_floors, ("layer", "decode", "epoch"))
    found = dict(costs())
    for experts in (8, 32, 128):
        for gate in ("BASE", "task"):
            name = f"ours, {gate} gate, {experts} experts"
            if experts == 128:
                found[f"layer, {gate}, {experts}: time / bound"] = f"{layer[f'{name}: time / bound']:.2f}"
            found[f"layer, {gate}, {experts}: memory / dense"] = f"{layer[f'{name}: memory / dense']:.2f}"
        if experts < 128:
            value = layer[f"ours, BASE gate, {experts} experts: time / HF Switch, top 1, per active FLOP"]
            found[f"layer, BASE, {experts}: time / Switch"] = f"{value:.2f}"
    equal = f"sentences/s, {SPARSE}, equal experts / {STOCK}, 8 sentences"
    found["generation, equal experts, 8 sentences"] = f"{decode[equal]:.2f}"
    found["stock with our loss and Adam"] = f"{step_ratio(STOCK_OURS, STOCK):.2f}"
    found["epoch of 10M: memory"] = f"{epoch['10M pairs, all drawn: memory, ours / fairseq']:.2f}"
    found["epoch of 1M: time"] = f"{epoch['1M pairs, all drawn: time, ours / fairseq']:.2f}"
    found["epoch of 200M: seconds"] = f"{epoch['200M pairs: seconds']:.1f}"
    found["epoch of 200M: GB"] = f"{epoch['200M pairs: GB above start']:.1f}"
    seconds = read("step")["raw"]["seconds"]
    found["step: stock, seconds"] = f"{median(seconds[STOCK]):.1f}"
    return found


TEXTS: dict[str, Callable[[], Figures]] = {
    "README.md": readme,
    "benchmarks/results/training.md": training_text,
    "benchmarks/results/speed.md": speed_text,
}


def collect() -> dict[str, Figures]:
    """All figures, by text."""
    return {text: figures() for text, figures in TEXTS.items()}


def with_tables(text: str) -> str:
    """README with the tables that are made of results."""
    for name, table in sparse_tables().items():
        text = in_text(text, name, table.markdown())
    return in_text(text, BORROWING, block_of(pemt_tables()))


@click.command()
@click.option("--write", is_flag=True, help="Write benchmarks/results/figures.json, and tables in README.md.")
def main(write: bool) -> None:
    """Show every quoted figure."""
    content = json.dumps(collect(), indent=1, ensure_ascii=False) + "\n"
    click.echo(content)
    if write:
        write_text(FIGURES, content)
        write_text(README, with_tables(README.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
