"""PEMT's evidence: rows that differ in one thing, sources that are trained before they are borrowed, and the report."""

import itertools
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairseq_mtmoe.analysis.run_log import FILE_NAME, RunLog
from tests.helpers.tables import unpadded

MODULES = ("compare_pemt", "compare_training", "glue_runs", "training_report", "training_systems")
FILES = [f"/runs/source_lora-{task}-1/{task}.pt" for task in ("snli", "qqp", "sst2", "qnli")]


@pytest.fixture
def study():
    """The script, which imports others of its folder by name."""
    import compare_pemt

    yield compare_pemt
    for name in MODULES:
        sys.modules.pop(name)


@pytest.fixture
def plan(study):
    return study.PemtPlan(Path("/data/glue"), Path("/data/t5.pt"), Path("/runs"), 200, 60, 2e-3, ())


def options_of(command):
    """The options of a command and the values that win; True for one without."""
    given = {}
    for name, value in itertools.pairwise([*command, "--"]):
        if name.startswith("--") and name != "--save-dir":
            given[name] = True if value.startswith("--") else value
    return given


def changed(one, other):
    return {name: other.get(name) for name in one | other if one.get(name) != other.get(name)}


def test_rows_differ_in_one_thing(study, plan):
    found = {run.system: options_of(study.command_for(plan, run)) for run in study.targets(plan, 1)}
    # PEMT alone validates while it is trained, too, which is when it notes what it borrows.
    assert [system for system, options in found.items() if not options.pop("--disable-validation", False)] == ["pemt"]
    pemt = found.pop(study.PEMT)
    assert pemt["--pemt-sources"].split(",") == FILES and pemt["--target-task"] == "cb"
    of_kind = {kind: ",".join(FILES).replace("_lora-", f"_{kind}-") for kind in study.KINDS}
    assert {system: changed(pemt, options) for system, options in found.items()} == {
        "lora": {
            "--pemt-stage": "source", "--no-prompt": True, "--pemt-sources": None,
            "--source-task": "cb", "--target-task": None,
        },
        "full": {
            "--arch": "t5", "--criterion": "cross_entropy", "--lr": "0.0005", "--pemt-stage": None,
            "--pemt-sources": None, "--adapter-rank": None, "--adapter-alpha": None,
        },
        "no_description": {"--prompt-init": "random", "--pemt-sources": of_kind["random"]},
        "no_correlation": {"--no-prompt": True, "--pemt-sources": of_kind["no_prompt"]},
        "target_adapter": {"--pemt-sources": None},
        "bottleneck": {
            "--adapter": "bottleneck", "--adapter-alpha": None, "--pemt-sources": of_kind["bottleneck"]
        },
        "gate_activations": {"--gate-input": "activations"},
        "sources_1": {"--pemt-sources": FILES[0]},
        "sources_2": {"--pemt-sources": ",".join(FILES[:2])},
    }  # fmt: skip
    assert set(study.PAPER) == {"pemt", *found} - {"gate_activations"}


def test_what_targets_borrow_is_trained_as_they_are(study, plan):
    sources = {str(plan.runs / run.name / f"{run.tasks[0]}.pt"): run for run in study.source_tasks(plan, 500)}
    borrowed = set()
    for run in (*study.targets(plan, 1), *study.few_examples(plan, 1)):
        target = options_of(study.command_for(plan, run))
        for path in filter(None, target.get("--pemt-sources", "").split(",")):
            source = options_of(study.command_for(plan, sources[path]))
            assert source["--pemt-stage"] == "source" and source["--source-task"] == sources[path].tasks[0]
            shared = ("--adapter", "--adapter-rank", "--adapter-alpha", "--no-prompt", "--init-model", "--arch")
            assert [source.get(name) for name in shared] == [target.get(name) for name in shared]
            borrowed.add(path)
    assert borrowed == set(sources)


def test_few_examples_are_the_same_for_all_systems(study, plan):
    runs = list(study.few_examples(plan, 7))
    assert len(runs) == 3 * len(study.SHOTS) * len(study.TARGETS)
    for run in runs:
        found = options_of(study.command_for(plan, run))
        assert found["--train-examples"] == str(run.stage) and found["--train-examples-seed"] == "7"


def test_runs_have_names_of_their_own_and_portable_commands(study, plan):
    runs = [*study.source_tasks(plan, 500)]
    runs += [run for seed in (1, 2) for stage in (study.targets, study.few_examples) for run in stage(plan, seed)]
    assert len({run.name for run in runs}) == len(runs)
    from glue_runs import portable

    for run in runs:
        for command in (study.command_for(plan, run), study.validation_for(plan, run)):
            assert not [word for word in portable(plan, command) if word.startswith("/")]


def test_an_encoder_is_told_tasks_and_few_examples_in_its_own_words(study, plan):
    plan.backbone = study.BACKBONES["encoder"]
    runs = [*study.targets(plan, 7), *study.few_examples(plan, 7)]
    found = {(run.system, run.tasks[0], run.examples): options_of(study.command_for(plan, run)) for run in runs}
    assert {(options["--task"], options["--init-encoder"]) for options in found.values()} == {("glue", "/data/t5.pt")}
    pemt, full = found["pemt", "cb", 0], found["full", "cb", 0]
    assert pemt["--glue-tasks"] == "cb" and pemt["--pemt-sources"].split(",") == FILES
    assert (pemt["--arch"], full["--arch"]) == ("pemt_bert_minilm", "mt_dense_minilm")
    few = found["pemt", "cb", 16]
    assert changed(pemt, few) == {
        "--train-share": "cb=0.064", "--train-share-seed": "7", "--disable-validation": True,
        "--max-update": "60", "--total-num-update": "60", "--warmup-updates": "6", "--virtual-epoch-size": "960",
    }  # fmt: skip


def record_of(run, score):
    sets = {run.tasks[0]: {"examples": 10, "score": score, "standard_error": 1.0, "data_sha256": "", "also": {}}}
    task = {"title": run.tasks[0].upper(), "metric": "accuracy", "small": True, "group": "", "sets": sets}
    from dataclasses import asdict

    about = {"commit": "abc", "hardware": "a core", "versions": {"torch": "1"}, "command": ["fairseq-train"]}
    weights = {"weights": {"snli": 0.75, "qqp": 0.25}} if run.system == "pemt" and run.stage == 1 else {}
    return {**about, **asdict(run), "seconds": 60, "scores": {run.tasks[0]: task}, **weights}


def test_what_was_found_is_reported_by_stage(study, plan, tmp_path, monkeypatch):
    import report_glue

    monkeypatch.setattr(study, "do", lambda plan, run: record_of(run, 50 + run.seed + (run.system == "pemt")))
    monkeypatch.setattr(Path, "unlink", lambda path: None)
    (tmp_path / "t5.pt").touch()
    result = tmp_path / "found.json"
    for stage in ("sources", "targets", "few"):
        arguments = ["text", tmp_path, tmp_path / "t5.pt", "--runs", tmp_path / "runs", "--result", result]
        done = CliRunner().invoke(study.main, [str(word) for word in (*arguments, "--stage", stage, "--seeds", "1,2")])
        assert done.exit_code == 0, done.output
    text = report_glue.report(json.loads(result.read_text()), "PEMT")
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings == [
        "## Targets, all examples", "## Targets, 4 examples", "## Targets, 16 examples", "## Targets, 32 examples",
        "## Sources", "## Commands",
    ]  # fmt: skip
    full = next(line for line in text.splitlines() if line.startswith("| full ") and "75.8" in line)
    assert "51.50 ±0.50" in full
    assert "| full − pemt" in text and "-1.00 ±0.00" in text
    (borrowed,) = [unpadded(line) for line in text.splitlines() if unpadded(line).startswith("| pemt | CB |")]
    assert borrowed == "| pemt | CB | 75.00 ±0.00 | 25.00 ±0.00 |"


def test_what_is_borrowed_is_in_the_run_log(study, plan, tmp_path, monkeypatch):
    plan.runs = tmp_path
    monkeypatch.setattr(study, "run_one", lambda plan, run, *commands: {"scores": {}})
    run = next(study.targets(plan, 1))
    log = RunLog(tmp_path / run.name / FILE_NAME)
    for update, first in ((1, 0.5), (2, 0.8)):
        layers = {"encoder.layers.0": [first, 1 - first], "decoder.layers.0": [0.6, 0.4]}
        log.write("sources", update=update, target="stsb", sources=["snli", "qqp"], layers=layers)
    assert study.do(plan, run)["weights"] == pytest.approx({"snli": 0.7, "qqp": 0.3})


def test_languages_differ_in_what_they_borrow(study, tmp_path):
    from training_systems import train_command

    for language in ("gl", "es", "pt", "fi", "tr"):
        (tmp_path / f"train.en-{language}.en.idx").touch()
    runs = Path("runs")

    def command(system):
        return options_of(train_command(system, study.LANGUAGES, tmp_path, Path("run"), 1, 3))

    found = {system.name: command(system) for system in study.low_resource(runs)}
    assert {options["--lang-pairs"] for options in found.values()} == {"en-gl"}
    assert command(study.translator())["--lang-pairs"] == "en-es,en-fi,en-gl,en-pt,en-tr"
    assert {options["--langs"] for options in found.values()} == {"en,es,fi,gl,pt,tr"}
    files = {language: f"runs/source_{language}-1/en-{language}.pt" for language in ("es", "pt", "fi", "tr")}
    assert changed(found["relatives"], found["others"]) == {"--pemt-sources": f"{files['fi']},{files['tr']}"}
    assert changed(found["relatives"], found["target_adapter"]) == {"--pemt-sources": None}
    assert found["pemt"]["--pemt-sources"] == ",".join(files.values())
    source = command(study.language_source(runs, "es"))
    assert changed(found["lora"], source) == {"--lang-pairs": "en-es", "--no-prompt": None}
    assert set(changed(found["lora"], found["full"])) == {
        "--arch", "--criterion", "--lr", "--pemt-stage", "--no-prompt", "--adapter-rank", "--adapter-alpha",
    }  # fmt: skip
