"""`examples/`: scripts that bash understands, with the tables' sizes and the configurations' options; some run."""

import json
import re
import shlex
import subprocess

import pytest
import torch

from fairseq_mtmoe import register
from fairseq_mtmoe.nlu.data.table import chosen_rows, load_tables
from fairseq_mtmoe.report.run_log import read
from tests.helpers.benchmark import make_benchmark, make_encoder
from tests.helpers.commands import REPOSITORY
from tests.helpers.raw_corpora import write_raw
from tests.helpers.scripts import called_by, run_script
from tests.helpers.text_to_text import make_t5
from tests.integration.cli.test_configurations import GROUPS, differing, from_command_line, from_configuration

EXAMPLES = REPOSITORY / "examples"
TRANSLATION = EXAMPLES / "translation"
WMT15 = ["cs", "de", "es", "et", "fi", "fr", "gu", "hi", "kk", "lt", "lv", "ro", "ru", "tr", "zh"]
TINY_TASKS = ("--cpu", "--max-positions", 24)


def text_of(name):
    return (EXAMPLES / name).read_text(encoding="utf-8")


def settings_of(folder):
    return json.loads((folder / "scores.json").read_text(encoding="utf-8"))["settings"]


def test_bash_understands_every_example():
    for script in EXAMPLES.glob("**/*.sh"):
        subprocess.run(["bash", "-n", script], check=True)


# ---- what scripts name ----


def sizes_in(text):
    return {name: int(count) for name, count in re.findall(r"\[(\w+)\]=(\d+)", text)}


def named_in(text, variables):
    lists = re.findall(rf"(?:{variables}):-([\w,=]+)", text)
    return {name for found in lists for name in re.split("[,=]", found)}


def test_tasks_have_the_sizes_of_the_table_and_mixtures_as_many_as_they_are_called_by():
    glue, new = sizes_in(text_of("glue/stages.sh")), sizes_in(text_of("ca_mtl/new_tasks.sh"))
    pemt = sizes_in(text_of("pemt/runs.sh").split("declare -A POSITIONS")[0])
    rows = load_tables()
    for sizes in (glue, new, pemt):
        assert sizes == {name: rows[name].splits["train"][0].count for name in sizes} and sizes
    scripts = [path.read_text(encoding="utf-8") for path in (EXAMPLES / "glue").glob("*.sh")]
    assert set().union(*(named_in(text, "TASKS|CLEAN|NEW|MORE") for text in scripts)) == set(glue) - {"sick"}
    named = named_in(text_of("pemt/runs.sh"), "TASKS|SOURCES")
    assert len(named) == 15 and named <= {*pemt, *glue}
    found = re.findall(r"\[(\d+)\]=([\w,]+)", text_of("ca_mtl/many_tasks.sh"))
    assert [len(chosen_rows(rows, tasks.split(","))) for _, tasks in found] == [int(number) for number, _ in found]


@pytest.mark.parametrize(
    ("script", "variables", "sentence"),
    [
        ("ca_mtl/new_tasks.sh", {"NEW": "anli"}, "`NEW` must be some of .*scitail.*, but has anli: add its number"),
        ("pemt/full_data.sh", {"TASKS": "rte,mine"}, "`TASKS` must be some of .*boolq.* but has mine: add its number"),
        ("pemt/num_sources.sh", {"SOURCES": "rte,cb", "COUNTS": "1 3"}, r"`COUNTS` must have numbers .* 2, .* has 3"),
        ("pemt/languages.sh", {"OTHERS": "fi"}, "must have a pair of English and fi, but has en_XX-gl_ES"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is(script, variables, sentence, tmp_path):
    (tmp_path / "lang_pairs.txt").write_text("en_XX-gl_ES,en_XX-es_XX,en-pt\n")
    given = {"GLUE_DIR": str(tmp_path), "DATA": str(tmp_path), "T5": "t5.pt", "ENCODER": "tiny.pt",
             "RUNS": str(tmp_path / "runs"), "PATH": "/usr/bin:/bin"}  # fmt: skip
    refused = subprocess.run(["bash", EXAMPLES / script], env={**given, **variables}, capture_output=True, text=True)
    assert refused.returncode == 1 and refused.stdout == "" and re.search(sentence, refused.stderr), refused.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["wmt15", "ml50"])
def test_a_benchmark_is_trained_by_its_configuration(name):
    register()
    ((command, *arguments),) = called_by(TRANSLATION / name / "train.sh", "--lr", "0.0007", DATA="DATA")
    assert command == "fairseq-train"
    called = from_command_line(shlex.join(arguments))
    configuration = from_configuration("translation", f"+experiment={name}", "task.data=DATA")
    own = {"dataset_impl", "save_dir", "langs", "lang_pairs", "lang_dict"}  # the scripts read DATA's lists
    assert {key for _, key in differing(called, configuration, GROUPS)} <= own
    pairs = [f"en-{lang}" for lang in WMT15]
    languages = {"wmt15": (",".join(sorted([*WMT15, "en"])), ",".join(pairs), None),
                 "ml50": (None, "DATA/lang_pairs.txt", "DATA/langs.txt")}  # fmt: skip
    task = configuration.task
    assert (task.get("langs"), task.lang_pairs, task.get("lang_dict")) == languages[name]
    keys = ("num_experts", "expert_gates", "expert_interval", "expert_combine", "dense_updates")
    assert [called.model[key] for key in keys] == [configuration.model[key] for key in keys]
    assert arguments[arguments.index("--arch") + 1] == f"base_moe_{name}"
    assert called.common.seed == configuration.common.seed


# ---- scripts that run through ----


def test_from_raw_text_to_a_table(tmp_path):
    """The three scripts one after the other, with a small recipe and a tiny model."""
    recipe, runs = write_raw(tmp_path / "raw"), tmp_path / "runs"
    scripts = {name: TRANSLATION / "wmt15" / f"{name}.sh" for name in ("prepare", "train", "evaluate")}
    run_script(scripts["prepare"], tmp_path / "raw", "--recipe", recipe, "--workers", 1, RUNS=runs)
    tiny = (
        "--arch", "base_moe_tiny", "--num-experts", 2, "--dense-updates", 2, "--max-update", 4, "--max-tokens", 400,
        "--virtual-epoch-size", 60, "--validate-interval-updates", 2, "--save-interval-updates", 2, "--cpu",
        "--num-workers", 0, "--log-interval", 1,
    )  # fmt: skip
    run_script(scripts["train"], *tiny, RUNS=runs)
    results = tmp_path / "results"
    options = ("--tiers", "wmt15", "--out", results, "--beam", 1, "--max-len-b", 8, "--cpu")
    printed = run_script(scripts["evaluate"], *options, RUNS=runs)
    scores = json.loads((results / "scores.json").read_text(encoding="utf-8"))
    assert {pair: one["tier"] for pair, one in scores["pairs"].items()} == {"en-de": "high", "en-et": "low"}
    assert "en-de" in printed and (runs / "wmt15" / "model" / "plots" / "sampling.png").exists()


@pytest.mark.scheduled
def test_a_language_is_added_to_the_demo_s_translator(tmp_path):
    """Nothing is copied by hand: pieces, their order and the weights are those of the model that learns a language."""
    small = (
        "--encoder-embed-dim", 16, "--decoder-embed-dim", 16, "--encoder-ffn-embed-dim", 16,
        "--decoder-ffn-embed-dim", 16, "--max-update", 4, "--validate-interval-updates", 4,
        "--save-interval-updates", 4, "--log-interval", 1, "--virtual-epoch-size", 400,
    )  # fmt: skip
    catalogs, variables = TRANSLATION / "catalogs", {"RUNS": tmp_path}
    recipe = tmp_path / "two.yaml"
    settings = "held_out: {valid: 20, test: 20}, vocabulary: {size: 700}"
    recipe.write_text(f"{{name: two, {settings}, corpora: [{{recipe: catalogs, langs: [cs, cy]}}]}}")
    run_script(catalogs / "prepare.sh", RECIPE=recipe, **variables)
    run_script(catalogs / "train.sh", *small, "--cpu", **variables)
    shown = run_script(catalogs / "evaluate.sh", "--cpu", "--beam", 1, "--max-len-b", 8, **variables)
    assert shown.count("reference") == 2 and "--to all" in shown
    add = TRANSLATION / "new_language" / "add.sh"
    printed = run_script(add, *small, "--lr", 0, LANGUAGE="fi", FROM="cs", **variables)
    old, new = tmp_path / "catalogs", tmp_path / "catalogs-fi"
    for name in ("spm.model", "dict.en.txt"):
        assert (old / "data" / name).read_bytes() == (new / "data" / name).read_bytes()
    assert (new / "data" / "langs.txt").read_text() == "cs\ncy\nen\nfi\n"
    grown, trained = (torch.load(path) for path in (new / "grown.pt", new / "model" / "checkpoint_last.pt"))
    assert trained["task_state"]["langs"] == ["cs", "cy", "en", "fi"]
    before, after = (state["model"]["encoder.embed_tokens.weight"] for state in (grown, trained))
    assert torch.equal(before, after) and torch.equal(after[-1], after[-4])  # `fi` begins as `cs`
    assert "en-fi" in printed and "BLEU" in printed


@pytest.fixture
def variables(tmp_path):
    make_benchmark(tmp_path, {"train": 300, "dev": 20})
    make_encoder(tmp_path / "tiny.pt")
    make_t5(tmp_path / "t5" / "tiny.pt")
    return {"GLUE_DIR": tmp_path, "ENCODER": tmp_path / "tiny.pt", "T5": tmp_path / "t5" / "tiny.pt",
            "RUNS": tmp_path / "runs"}  # fmt: skip


@pytest.mark.scheduled
def test_few_examples_of_a_new_task(variables):
    """From nothing to the table: a mixture, its gate in a new task with a tenth of the examples, scores."""
    chosen = {"SEEDS": 1, "UPDATES": 2, "TASKS": "cola,wic", "SYSTEMS": "mt_tag", "NEW": "rte=wic", "SHARES": 0.1}
    printed = run_script(EXAMPLES / "glue" / "few_shot.sh", *TINY_TASKS, **variables, **chosen)
    tuned = variables["RUNS"] / "tiny" / "mt_tag_0.1-1" / "rte"
    assert read(tuned)[0]["sizes"] == {"rte": 30}
    assert settings_of(tuned)["finetune_from_model"].endswith("mt_tag-1/mixture/checkpoint_last.pt")
    assert all(name in printed for name in ("single_task_0.1", "mt_tag_0.1"))


@pytest.mark.scheduled
def test_a_new_task_from_the_mixture_and_alone(variables):
    """From nothing to the table: CA-MTL's mixture, a grown checkpoint, few of the new task's examples, scores."""
    chosen = {"SEEDS": 1, "UPDATES": 2, "ARCH": "ca_mtl", "TASKS": "cola,wic", "NEW": "rte", "STARTS": "wic",
              "SHARES": 0.01, "FEW_UPDATES": 12}  # fmt: skip
    printed = run_script(EXAMPLES / "ca_mtl" / "new_tasks.sh", *TINY_TASKS, **variables, **chosen)
    adapted = variables["RUNS"] / "tiny" / "from_wic_0.01-1" / "rte"
    events = read(adapted)
    validated = [event["update"] for event in events if event["event"] == "valid"]
    assert validated == [2, 4, 6, 8, 10, 12], "an epoch of few examples is an update, and validations are ten at most"
    assert events[0]["sizes"] == {"rte": 3} and settings_of(adapted)["finetune_from_model"].endswith("begin.pt")
    assert all(name in printed for name in ("alone_0.01", "from_wic_0.01"))


@pytest.mark.scheduled
def test_few_examples_with_sources_and_without(variables):
    """From nothing to the table: a source's file, LoRA and PEMT from four examples, scores; nothing is done twice."""
    options = ("--cpu", "--max-update", 2, "--adapter-rank", 4)
    chosen = {"SEEDS": 7, "SIZE": "", "SOURCES": "cola", "TASKS": "rte", "SHOTS": 4}
    printed = run_script(EXAMPLES / "pemt" / "few_shot.sh", *options, **variables, **chosen)
    begun, *events = read(variables["RUNS"] / "tiny" / "pemt_4-7" / "rte")
    assert begun["sizes"] == {"rte": 4}
    assert {tuple(event["sources"]) for event in events if event["event"] == "sources"} == {("cola",)}
    assert all(name in printed for name in ("lora_4", "pemt_4"))
    assert "==" not in run_script(EXAMPLES / "pemt" / "few_shot.sh", *options, **variables, **chosen)
