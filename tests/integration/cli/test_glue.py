"""Language understanding through the real commands: mixtures, metrics, resuming and stages; embeddings of tasks."""

import json

import pytest
import torch

from fairseq_mtmoe.nlu.bert.pretrained import load
from fairseq_mtmoe.report.run_log import read
from tests.helpers import benchmark
from tests.helpers.benchmark import TASKS, logged, task_arguments, validate, validated
from tests.helpers.commands import run
from tests.helpers.invoked import mtmoe
from tests.helpers.training import run_here, train_here

NAMES = TASKS.split(",")
METRICS = {"cola": "matthews", "stsb": "spearman", "copa": "accuracy", "wic": "accuracy"}


@pytest.fixture(scope="module")
def benchmark_data(tmp_path_factory):
    """A made benchmark, and `encoder.pt`."""
    folder = tmp_path_factory.mktemp("benchmark")
    benchmark.make_benchmark(folder, {"train": 300, "dev": 60})
    benchmark.make_encoder(folder / "encoder.pt")
    return folder


@pytest.fixture(scope="module")
def mixture(benchmark_data, tmp_path_factory):
    """The folder of a run that has learned all tasks; what it wrote is in `log.txt`."""
    folder = tmp_path_factory.mktemp("mixture")
    options = ("--init-encoder", benchmark_data / "encoder.pt", "--max-update", 300, "--lr", 0.004,
               "--validate-interval", 4)  # fmt: skip
    said = run("fairseq-train", *task_arguments(benchmark_data, folder, *options))
    (folder / "log.txt").write_text(said.stdout + said.stderr)
    return folder


@pytest.fixture(scope="module")
def validation(benchmark_data, mixture, tmp_path_factory):
    """A validation of it in two processes: the folder of scores, what was written, and the figures in its line."""
    folder = tmp_path_factory.mktemp("validated") / "scores"
    output = validate(benchmark_data, mixture / "checkpoint_best.pt", "--results-path", folder)
    return folder, output.stdout, validated(output)


def model_of(path):
    return torch.load(path)["model"]


def test_it_learns_a_mixture_of_all_kinds(mixture, validation):
    """In an epoch each has a quarter of the examples, so that the mean of their losses is the loss."""
    figures = validation[2]
    scores = [figures[f"{task}_{metric}"] for task, metric in METRICS.items()]
    # Chance is 0 or 50. Processors round differently: the updates suffice for each of them.
    assert min(*scores, figures["small"]) >= 90, figures
    assert figures["all"] == pytest.approx(sum(scores) / 4, abs=0.01), figures
    trained = logged((mixture / "log.txt").read_text(), "train_wall")
    losses = [trained[f"{task}_loss"] for task in NAMES]
    assert sum(losses) / 4 == pytest.approx(trained["loss"], abs=2e-3) and len(set(losses)) == 4
    events = read(mixture)
    *_, last = (event for event in events if event["event"] == "valid")
    assert set(last["tasks"]) == set(NAMES) and last["groups"]["all"]["mean"] >= 90
    *_, experts = (event for event in events if event["event"] == "experts")
    assert experts["task_names"] == NAMES and len(experts["layers"]) == 2


def test_a_validation_prints_and_writes_the_scores_of_its_line(benchmark_data, mixture, validation):
    """One of two processes does; `mtmoe evaluate` in one process finds the same."""
    folder, shown, figures = validation
    assert shown.count("Small") == 1 and shown.count("scores.json") == 1
    written = json.loads((folder / "scores.json").read_text())
    assert list(written["tasks"]) == NAMES
    for name, task in written["tasks"].items():
        assert task["score"] == pytest.approx(figures[f"{name}_{task['metric']}"], abs=0.01)
        (found,) = task["sets"].values()
        assert task["examples"] == 60 and found["majority"][task["metric"]] < task["score"]
    for name in ("small", "all"):
        assert written["averages"][name]["score"] == pytest.approx(figures[name], abs=0.02)
    settings = written["settings"]
    assert (settings["model"], settings["seed"], settings["trained_tasks"]) == ("mt_tag", 1, NAMES)
    (folder / "scores.json").unlink()
    evaluated = mtmoe("evaluate", benchmark_data, "--path", mixture / "checkpoint_best.pt", "--out", folder, "--cpu")
    assert json.loads((folder / "scores.json").read_text())["tasks"] == written["tasks"]
    cell = f"{written['averages']['all']['score']:.2f} ±"
    assert all(cell in text for text in (shown, evaluated, (folder / "scores.md").read_text()))


def test_resuming_changes_no_bit(benchmark_data, tmp_path):
    """Also of the sampling, which the run that goes on changes."""
    options = ("--init-encoder", benchmark_data / "encoder.pt", "--dropout", 0.1, "--virtual-epoch-size", 80,
               "--sampling-method", "uniform-then-natural", "--natural-from-epoch", 2, "--train-share", "cola=0.2",
               "--disable-validation", "--save-interval-updates", 4)  # fmt: skip
    for name, updates in (("whole", 11), ("parts", 4), ("parts", 11)):
        run_here(task_arguments(benchmark_data, tmp_path / name, *options, "--max-update", updates))
    whole, parts = (model_of(tmp_path / name / "checkpoint_last.pt") for name in ("whole", "parts"))
    assert [key for key in whole if not torch.equal(whole[key], parts[key])] == []
    events = [event for event in read(tmp_path / "parts") if event["event"] == "sampling"]
    shares = {event["epoch"]: event["probabilities"]["cola"] for event in events}
    assert shares == {1: 0.25, 2: pytest.approx(60 / 960), 3: pytest.approx(60 / 960)}


def test_a_new_task_begins_with_a_related_ones_gate(benchmark_data, mixture, tmp_path):
    """From the mixture's checkpoint alone, which has the encoder and the tokenizer; of few examples."""
    options = ("--glue-tasks", "rte", "--finetune-from-model", mixture / "checkpoint_best.pt", "--reuse-gate", "wic",
               "--max-update", 1, "--lr", 0, "--train-share", "rte=0.1")  # fmt: skip
    run_here(task_arguments(benchmark_data, tmp_path, *options))
    begun = read(tmp_path)[0]
    assert (begun["sizes"], begun["train_shares"], begun["train_share_seed"]) == ({"rte": 30}, {"rte": 0.1}, 1)
    new, old = model_of(tmp_path / "checkpoint_last.pt"), model_of(mixture / "checkpoint_best.pt")
    gates = {key: old[key][NAMES.index("wic")].unsqueeze(0) for key in new if key.endswith("gate.weight")}
    assert len(gates) == 2 and all(torch.equal(new[key], gate) for key, gate in gates.items())
    assert {key for key in new if key.startswith("heads.")} == {"heads.rte.weight", "heads.rte.bias"}
    assert torch.equal(new["encoder.layers.0.moe.experts.fc1_weight"], old["encoder.layers.0.moe.experts.fc1_weight"])


# ---- embeddings of tasks ----

TABLE = "encoder.task_embeddings.weight"
ADAPTED = ("--arch", "ca_mtl", "--conditional-positions", 24)
WIC, COLA = (NAMES.index(task) for task in ("wic", "cola"))


def test_the_lower_half_stays_and_other_tasks_begin_with_what_the_checkpoint_knows(benchmark_data, tmp_path):
    """The half is the pretrained encoder's to the bit, but for what is conditional there, without optimizer state."""

    def begun(folder, *options):
        run_here(task_arguments(benchmark_data, tmp_path / folder, *ADAPTED, *options, "--disable-validation"))
        return tmp_path / folder / "checkpoint_last.pt"

    adapted = begun("old", "--init-encoder", benchmark_data / "encoder.pt", "--dropout", 0.1, "--max-update", 6)
    old, below = model_of(adapted), ("encoder.embed_", "encoder.layernorm_embedding.", "encoder.layers.0.")
    kept = [name for name in old if name.startswith(below) and ".attention_bias." not in name]
    pretrained = load(benchmark_data / "encoder.pt").state
    assert len(kept) == 5 + 16
    assert [name for name in kept if not torch.equal(old[name], pretrained[name.split(".", 1)[1]])] == []
    assert len(torch.load(adapted)["last_optimizer_state"]["state"]) == len(old) - len(kept)
    assert old[TABLE].shape == (4, 16) and torch.pdist(old[TABLE]).min() > 1e-4, "tasks part"
    mtmoe("add-task", adapted, tmp_path / "grown.pt", "--task", "rte", "--embedding-from", "wic")
    for path, rte in ((adapted, torch.zeros(16)), (tmp_path / "grown.pt", old[TABLE][WIC])):
        one_update = ("--finetune-from-model", path, "--max-update", 1, "--lr", 0, "--glue-tasks", "wic,rte,cola")
        new, checkpoint = model_of(begun(f"from {path.stem}", *one_update)), model_of(path)
        assert torch.equal(new[TABLE], torch.stack([old[TABLE][WIC], rte, old[TABLE][COLA]]))
        shared = [name for name in new if name != TABLE and (path != adapted or not name.startswith("heads."))]
        assert [name for name in shared if not torch.equal(new[name], checkpoint[name])] == []


def test_a_pair_joins_the_others_of_a_translation_run(many_digits, tmp_path):
    options = ("--task-ids", "pair", "--conditional", "attention,norm", "--langs", "aa,bb,cc,en", "--max-epoch", 50)
    two = ("--lang-pairs", "en-aa,en-bb")
    train_here(many_digits, tmp_path / "run", *options, *two, "--max-update", 4)
    last, new = tmp_path / "run" / "checkpoint_last.pt", tmp_path / "new.pt"
    said = mtmoe("add-task", last, new, "--task", "en-cc", "--embedding-from", "en-aa")
    assert said == f"{new}: tasks en-aa, en-bb and en-cc, with the optimizer state\n"
    assert torch.equal(model_of(new)[TABLE], model_of(last)[TABLE][[0, 1, 0]])
    train_here(many_digits, tmp_path / "more", *options, "--restore-file", new, "--max-update", 8)
    state = torch.load(tmp_path / "more" / "checkpoint_last.pt")
    assert state["optimizer_history"][-1]["num_updates"] == 8
    assert len({tuple(row) for row in state["model"][TABLE].tolist()}) == 3
