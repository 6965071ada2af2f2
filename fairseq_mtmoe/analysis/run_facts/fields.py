"""The fields of what a report shows. Everything is ready for JSON; None stands for what nobody knows.

Lists that belong to a list of moments are as long as it.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

Number = float | None
Group = Literal["all", "tier", "pair", "task", "group"]
"""What a figure is of: everything, a tier of language pairs, a pair, a benchmark's task, or a set of such tasks."""


class Made(TypedDict):
    """What made the report."""

    mtmoe: str
    commit: str | None
    date: str  # ISO 8601, with its time zone


class Setup(TypedDict):
    """What was run. What an older run log does not say is None or empty."""

    options: dict[str, Any]  # those that are not fairseq's or our defaults
    versions: dict[str, str]  # by package
    commit: str | None
    hardware: str | None
    command: str | None
    seed: int | None
    started: str | None  # ISO 8601, in UTC: the first start, where it went on
    data: str | None
    folder: str | None  # that it was started in, where paths begin
    parameters: int | None  # of the model, in all ranks together
    multiplications: int | None  # of a token, as `slots.model_size` counts them
    sizes: dict[str, int]  # training sentences (of a benchmark: examples) by pair (task)
    tiers: dict[str, str]  # by pair
    unit: str  # what expert counts are of: "language", "pair" or "task"


class Best(TypedDict):
    """The validation with the lowest perplexity, or of a benchmark with the highest mean."""

    update: int
    metric: str
    value: float


class Progress(TypedDict):
    """How far the run is."""

    updates: int
    minutes: Number  # of training, without validations and saving
    tokens: int | None  # target tokens
    epoch: int | None
    skipped: int | None  # updates that were left out because they were not finite
    best: Best | None
    finished: bool | None


class Moments(TypedDict):
    """When something was measured."""

    update: list[int]
    minutes: list[Number]
    tokens: list[Number]


class CurveRow(TypedDict):
    """A figure of validation, over moments."""

    key: str  # "all", "tier:low", "pair:en-de", "task:rte", "group:small"; with `metric` it is unique
    label: str
    group: Group
    metric: str  # "ppl", "loss" or a metric's name
    better: Literal["lower", "higher"]
    values: list[Number]


class Curves(TypedDict):
    """What validations found; a moment for each."""

    subset: str
    moments: Moments
    rows: list[CurveRow]


class TrainRow(TypedDict):
    """A figure of training, over moments."""

    key: str
    label: str
    unit: str
    values: list[Number]


class Train(TypedDict):
    """What training said of itself, thinned so that highest and lowest values stay."""

    moments: Moments
    rows: list[TrainRow]


class Sampling(TypedDict):
    """How examples were drawn; a value for each epoch, or for each part of one within which the temperature rose."""

    epochs: list[int]
    updates: list[int | None]  # made before
    temperature: list[Number]
    probabilities: dict[str, list[Number]]  # by pair or task, the most frequent first
    candidates: bool  # epochs of candidates of uncertainty sampling are left out


class Selection(TypedDict):
    """What uncertainty sampling trained on."""

    updates: list[int]
    shares: dict[str, list[Number]]  # of what was trained on, by task
    entropies: dict[str, list[Number]]  # of the candidates, by task, in shares of the most that it can be
    share_of_data: list[Number]  # trained on at least once


class Sources(TypedDict):
    """What a run borrows, at its last validation."""

    update: int
    target: str
    sources: list[str]
    layers: dict[str, list[Number]]


class Experts(TypedDict):
    """Who uses which expert in validation."""

    updates: list[int]
    layers: list[str]
    tasks: list[str]
    num_experts: dict[str, int]
    shares: list[list[list[list[float]]]]  # [update][layer][task][expert]; no experts where nothing was counted
    thinned: bool  # whether moments were left out


class Entropy(TypedDict):
    """How evenly a task's tokens are spread over the experts: 1 is evenly, 0 is all on one."""

    updates: list[int]
    layers: list[str]
    tasks: list[str]
    values: list[list[list[Number]]]  # [layer][task][update]


class Gates(TypedDict):
    """How far gates are from their start."""

    updates: list[int]
    figures: dict[str, dict[str, list[Number]]]  # by "blend", "moved" or "changed", and by layer


class Exchange(TypedDict):
    """What expert layers sent to other processes: the first process's, in the mean of one update."""

    updates: list[int]
    seconds: list[Number]
    megabytes: list[Number]
    layers: dict[str, dict[Literal["seconds", "megabytes"], list[Number]]]


class Sparsified(TypedDict):
    """When a dense model became sparse."""

    update: int
    num_experts: int | None


class ScoreRow(TypedDict):
    """The scores of a test set, or a mean of them."""

    key: str  # as of a CurveRow
    label: str
    group: Group
    tier: str  # "" where there is none
    examples: int | None  # sentences of a pair, pairs of a mean
    values: dict[str, Number]  # by metric
    errors: dict[str, Number]  # by metric, half of the 95% confidence interval
    majority: Number  # of a benchmark's task: the best score of one label for every example


class Scores(TypedDict):
    """What the trained model reached."""

    subset: str
    checkpoint: str
    metrics: list[str]
    rows: list[ScoreRow]  # of pairs or tasks
    averages: list[ScoreRow]  # of tiers or groups, and all last
    signatures: list[str]
    remarks: list[str]


class Sample(TypedDict):
    """One translation."""

    line: int  # of the test set, from 1
    source: str | None
    references: list[str]
    hypothesis: str


class Where(TypedDict, total=False):
    """What a warning is about."""

    layer: str
    task: str
    update: int


class Warning_(TypedDict):
    """What a reader should know first."""

    kind: str
    severity: Literal["high", "mid", "low"]
    text: str  # what, where, since when, by which rule, what to do
    where: Where


class RunFacts(TypedDict):
    """One run."""

    name: str
    path: str
    setup: Setup
    progress: Progress
    curves: Curves
    train: Train
    sampling: Sampling
    selection: Selection | None
    sources: Sources | None
    experts: Experts
    entropy: Entropy
    gates: Gates | None
    exchange: Exchange | None
    sparsified: list[Sparsified]
    scores: Scores | None
    samples: dict[str, list[Sample]]  # by pair
    warnings: list[Warning_]  # the most severe first
    notes: list[str]  # what the page does not show, and why


class Difference(TypedDict):
    """By how much a run is above another, of one test set or in the mean over several."""

    key: str
    label: str
    group: Group
    first: float
    second: float
    difference: float  # second less first
    error: float  # half of its 95% confidence interval
    p: float  # by approximate randomisation


class Comparison(TypedDict):
    """Two runs with scores of the same test sets, by one metric."""

    first: str  # names of runs
    second: str
    metric: str
    rows: list[Difference]


class Facts(TypedDict):
    """Everything that the page shows."""

    version: Literal[1]
    made: Made
    watched: Number  # seconds between two looks; None of a page that does not change
    runs: list[RunFacts]
    comparisons: list[Comparison]
    notes: list[str]
