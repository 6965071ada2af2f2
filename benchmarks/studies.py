"""Studies in `results/`: of each system a figure for each seed, whichever script wrote the JSON.

A list of runs is of `compare_training.py`; `settings` and `runs` are of `compare_glue.py` and its like; `raw` seconds
are of a benchmark. Runs that are not there yet are left out, so that tables can be made of what is there.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from statistics import pstdev
from typing import Any

from added_runs import is_added, with_added
from report_glue import Kind, mixtures, new_tasks
from training_systems import BASE, SETTINGS

from fairseq_mtmoe.analysis.comparison import figures
from fairseq_mtmoe.data.nlu.table import load_tables
from fairseq_mtmoe.io.files import read_json

Values = dict[int, float]  # by seed, of a benchmark by turn; NaN where a run never came to what is asked of it
SPREAD, SHARE_OF_DATA, MINUTES = "spread", "% of the data", "minutes to BASE's best"
SOURCES = 0  # the stage of what targets borrow from
# What a seed's runs may differ in.
PLACES = ("--seed", "--save-dir", "--stop-time-hours")


class Study(ABC):
    """What a script found.

    Args:
        path: the JSON.
        content: of it.
    """

    def __init__(self, path: Path, content: Any) -> None:
        self.name, self._path, self._content = path.stem, path, content

    @property
    @abstractmethod
    def systems(self) -> list[str]:
        """In their order."""

    @property
    @abstractmethod
    def commits(self) -> list[str]:
        """Of its runs, each once."""

    @property
    @abstractmethod
    def scale(self) -> str:
        """Data, sizes, updates: all that a reader must know before a figure is compared with a paper's."""

    @property
    @abstractmethod
    def size(self) -> str:
        """How large its models and how long its runs are, in a few words."""

    @property
    @abstractmethod
    def metrics(self) -> list[str]:
        """What the figures are, with signatures where there are some."""

    @abstractmethod
    def values(self, system: str, measure: str, stage: int = 1) -> Values:
        """A system's figure for each seed that has one."""

    def matching(self, wanted: str | Mapping[str, Any]) -> str:
        """The name of a system, which is given, or that of the one which differs from another in nothing but options:
        `{like: base, with: {--sampling-temperature: 1.0}}`. Empty if there is none."""
        name = wanted if isinstance(wanted, str) else wanted.get("system", "")
        return name if name in self.systems else ""


class TrainingStudy(Study):
    """Of `compare_training.py`: the same systems on one data set of language pairs."""

    @property
    def _runs(self) -> list[dict[str, Any]]:
        return list(self._content)

    @property
    def systems(self) -> list[str]:
        return _each_once(run["system"] for run in self._runs)

    @property
    def commits(self) -> list[str]:
        return _each_once(run.get("commit", "") for run in self._runs)

    def values(self, system: str, measure: str, stage: int = 1) -> Values:
        """Of validation perplexity the lowest, such as `perplexity low`; BLEU and chrF++ of the test sets."""
        found = {int(run["seed"]): _of_training(run, measure) for run in self._runs if run["system"] == system}
        return {seed: value for seed, value in sorted(found.items()) if value is not None}

    def matching(self, wanted: str | Mapping[str, Any]) -> str:
        if isinstance(wanted, str) or "like" not in wanted:
            return super().matching(wanted)
        like = self._options(wanted["like"])
        options = {**like, **{name: _plain(str(value)) for name, value in wanted["with"].items()}}
        found = [name for name in self.systems if like and self._options(name) == options]
        return found[0] if found else ""

    def _options(self, system: str) -> dict[str, str]:
        """Of a system's first run; how long heating takes is left out, which goes with whether there is any."""
        for run in self._runs:
            if run["system"] == system:
                return {
                    name: _plain(value)
                    for name, value in options_of(run.get("command", ())).items()
                    if name not in (*PLACES, "--heating-epochs", "--heating-updates")
                }
        return {}

    @cached_property
    def _sparse(self) -> dict[str, str]:
        """Options of BASE, or else of the model with the most experts."""
        commands = {run["system"]: options_of(run.get("command", ())) for run in self._runs}
        return commands.get(BASE) or max(commands.values(), key=lambda options: int(options.get("--num-experts", 0)))

    @property
    def scale(self) -> str:
        minutes = [run["minutes"][-1] for run in self._runs if run.get("minutes")]
        parts = [self._data or "data not said", shape(self._sparse), self.size]
        return "; ".join([*parts, f"{_range(minutes)} minutes of training a run"])

    @property
    def size(self) -> str:
        vocabulary = re.search(r"(?:--vocab-size |with )(?P<size>[\d,]+)(?:`| pieces)", self._data)
        parts = []
        if vocabulary and _is_told(self._sparse):
            dense, sparse = parameters(self._sparse, int(vocabulary["size"].replace(",", "")))
            parts.append(f"{_millions(dense)} parameters dense, {_millions(sparse)} sparse")
        updates = [run["updates"][-1] for run in self._runs if run.get("updates")]
        return "; ".join([*parts, f"{_range(updates)} updates a run"])

    @property
    def _data(self) -> str:
        """As the report beside the JSON says it, or as it is known to the script."""
        report = self._path.with_suffix(".md")
        text = report.read_text(encoding="utf-8") if report.exists() else ""
        found = re.search(r"^Data: (.*?)\.?$", text, re.M)
        setting = SETTINGS.get(self.name.removeprefix("training_"))
        return found[1] if found else setting.data if setting else ""

    @property
    def metrics(self) -> list[str]:
        pairs = [pair for run in self._runs for pair in run.get("scores", {}).get("pairs", {}).values()]
        signatures = [f"{title} `{pair[key]}`" for pair in pairs for title, key in _SIGNATURES.items() if key in pair]
        return ["validation perplexity, the lowest of the run", *_each_once(sorted(signatures))]


def _training_examples(task: str, settings: Mapping[str, Any]) -> int:
    """Of a task, by the settings of a study or the table of tasks."""
    if task in settings.get("sizes", {}):
        return int(settings["sizes"][task])
    everything = load_tables()[task].splits["train"][0].count or 0
    return round(everything * settings.get("capped", {}).get(task, 1))


_SIGNATURES = {"BLEU": "bleu_signature", "chrF++": "chrf_signature"}


def _of_training(run: Mapping[str, Any], measure: str) -> float | None:
    """A run's figure; None if it was not measured, NaN if the run never came to it."""
    if measure == MINUTES:
        value = run.get("minutes_to_base_best", math.nan)
        return math.nan if value is None else float(value)
    kind, group = measure.split()
    if kind == "perplexity":
        values = run["perplexity"].get(group)
        return min(values) if values else None
    found = run.get("scores", {}).get("averages", {}).get(group, {}).get(kind)
    return None if found is None else float(found)


class TaskStudy(Study):
    """Of `compare_glue.py`, `compare_ca_mtl.py` and `compare_pemt.py`: a benchmark's tasks, by stage."""

    @cached_property
    def _records(self) -> list[dict[str, Any]]:
        return list(self._content["runs"].values())

    @property
    def systems(self) -> list[str]:
        return _each_once(record["system"] for record in self._records)

    @property
    def commits(self) -> list[str]:
        return _each_once(record["commit"] for record in self._records)

    def values(self, system: str, measure: str, stage: int = 1) -> Values:
        """A task's score or an average; on a new task such as `SICK, 1%`, of stage 2."""
        kind = self._kinds.get(stage)
        one = next((one for one in kind.systems if one.name == system), None) if kind else None
        if kind is None or one is None:
            return {}
        if measure == SHARE_OF_DATA:
            records = [record for record in kind.of(one) if "share_of_data" in record and len(record["tasks"]) > 1]
            return {record["seed"]: 100 * record["share_of_data"] for record in records}
        if measure == SPREAD:
            return {int(run.seed or 0): pstdev(run.scores.values()) for run in one.runs}
        return {int(run.seed or 0): figures(run)[measure] for run in one.runs if measure in figures(run)}

    @cached_property
    def _kinds(self) -> dict[int, Kind]:
        """The runs of each stage; of a study with targets, of those in which these are all there."""
        settings = self._content["settings"]
        targets = settings.get("targets")
        kinds = {}
        for stage in {record["stage"] for record in self._records}:
            of_new_tasks = stage == 2 and "sections" not in settings
            kind = new_tasks(self._records) if of_new_tasks else mixtures(self._records, stage)
            is_whole = stage == SOURCES or not targets or (kind and set(kind.systems[0].runs[0].scores) == set(targets))
            if kind and is_whole:
                kinds[stage] = kind
        return kinds

    @property
    def scale(self) -> str:
        settings = self._content["settings"]
        parts = []
        if "sources" in settings:
            parts.append(f"sources {', '.join(settings['sources'])}, {settings['source_updates']:,} updates each")
        tasks = settings.get("sizes") or settings.get("tasks") or settings.get("targets", [])
        trained = [f"{task} {_training_examples(task, settings):,}" for task in tasks]
        parts.append(f"training examples: {', '.join(trained)}")
        few = settings.get("few_updates") or next((r["updates"] for r in self._records if r["stage"] == 2), None)
        return "; ".join([*parts, self.size, *([f"{few:,} on a new task or with few examples"] if few else [])])

    @property
    def size(self) -> str:
        return f"{self._content['settings']['updates']:,} updates of {self._content['settings']['batch']} a run"

    @property
    def metrics(self) -> list[str]:
        scores = {name: score for record in self._records for name, score in record["scores"].items()}
        return [f"{score['title']}: {score['metric']}" for score in scores.values()]


class TimingStudy(Study):
    """Of a benchmark that takes its systems in turn; a measure is what `raw` calls its seconds."""

    @property
    def systems(self) -> list[str]:
        return _each_once(name for systems in self._content["raw"].values() for name in systems)

    @property
    def commits(self) -> list[str]:
        return [self._content["commit"]]

    def values(self, system: str, measure: str, stage: int = 1) -> Values:
        """A system's seconds, turn by turn."""
        return dict(enumerate(self._content["raw"].get(measure, {}).get(system, ()), start=1))

    @property
    def scale(self) -> str:
        return f"{self._content['machine']}; {self.size}"

    @property
    def size(self) -> str:
        counts = {len(seconds) for systems in self._content["raw"].values() for seconds in systems.values()}
        return f"{_range(sorted(counts))} turns"

    @property
    def metrics(self) -> list[str]:
        return ["seconds, all systems in turn"]


def open_study(path: Path) -> Study | None:
    """The study in a JSON file, with what was added to it later; None if it holds something else."""
    if is_added(path):
        return None
    content = read_json(path)
    runs = content.get("runs") if isinstance(content, dict) else content
    if isinstance(runs, list) and _all_have(runs, "system", "seed", "perplexity"):
        return TrainingStudy(path, with_added(path, runs))
    if isinstance(content, dict) and isinstance(runs, dict) and _all_have(runs.values(), "system", "stage", "scores"):
        return TaskStudy(path, content)
    if isinstance(content, dict) and content.get("raw") and "command" in content:
        return TimingStudy(path, content)
    return None


def _all_have(runs: Collection[Any], *fields: str) -> bool:
    return bool(runs) and all(isinstance(run, dict) and set(fields) <= run.keys() for run in runs)


# ---- sizes of translators ----


def options_of(command: Sequence[str]) -> dict[str, str]:
    """A command's options, each with what follows it; flags with nothing."""
    found: dict[str, str] = {}
    name = ""
    for word in command:
        if word.startswith("--"):
            name = word
            found[name] = ""
        elif name:
            found[name] = f"{found[name]} {word}".strip()
    return found


def shape(options: Mapping[str, str]) -> str:
    """A translator's sizes in words."""
    if not _is_told(options):
        return f"`--arch {options.get('--arch', '?')}`"
    blocks = f"{options['--encoder-layers']}+{options['--decoder-layers']} blocks"
    text = f"{blocks} of {options['--encoder-embed-dim']} (inner {options['--encoder-ffn-embed-dim']})"
    if "--num-experts" not in options:
        return text
    every = int(options.get("--expert-interval", 2))
    where = "in every block" if every == 1 else f"in one block of {every}"
    return f"{text}, {options['--num-experts']} experts {where}"


def _is_told(options: Mapping[str, str]) -> bool:
    """Whether the options have all sizes, so that none is an architecture's own."""
    sizes = ("layers", "embed-dim", "ffn-embed-dim")
    return all(f"--{side}-{size}" in options for side in ("encoder", "decoder") for size in sizes)


def parameters(options: Mapping[str, str], vocabulary: int) -> tuple[int, int]:
    """How many a translator with one embedding has, dense and with its experts."""
    dense, sparse = vocabulary * int(options["--encoder-embed-dim"]), 0
    every, experts = int(options.get("--expert-interval", 2)), int(options.get("--num-experts", 1))
    for side, attentions in (("encoder", 1), ("decoder", 2)):
        width, inner = int(options[f"--{side}-embed-dim"]), int(options[f"--{side}-ffn-embed-dim"])
        layers = int(options[f"--{side}-layers"])
        feed_forward = 2 * width * inner + inner + width
        norms = 2 * width * (attentions + 1)
        dense += layers * (attentions * 4 * (width**2 + width) + feed_forward + norms)
        dense += 2 * width if f"--{side}-normalize-before" in options else 0
        sparse += layers // every * ((experts - 1) * feed_forward + experts * width)
    return dense, dense + sparse


def _millions(number: int) -> str:
    """Two digits that count."""
    return f"{float(f'{number / 1e6:.2g}'):g} million"


def _range(values: Sequence[float]) -> str:
    """Such as `1,122 to 1,392`, of minutes with a digit behind the point."""
    if not values:
        return "no"
    whole = all(isinstance(value, int) for value in values)
    low, high = (f"{value:,.0f}" if whole else f"{value:,.1f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _plain(value: str) -> str:
    """A number as it is compared with another: 1.0 is 1."""
    return f"{float(value):g}" if re.fullmatch(r"-?\d+(\.\d+)?", value) else value


def _each_once(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))
