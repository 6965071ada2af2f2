"""`examples/pemt`: scripts with the right sizes, one of which runs through."""

import json
import re
import subprocess

import pytest

from fairseq_mtmoe.data.nlu.table import load_tables
from tests.helpers.benchmark import make_benchmark
from tests.helpers.commands import REPOSITORY
from tests.helpers.scripts import run_script
from tests.helpers.text_to_text import make_t5

FOLDER = REPOSITORY / "examples" / "pemt"


def test_the_sizes_of_tasks_are_those_of_the_table():
    own = (FOLDER / "runs.sh").read_text(encoding="utf-8")
    beside = (REPOSITORY / "examples" / "glue" / "stages.sh").read_text(encoding="utf-8")
    added = re.findall(r"\[(\w+)\]=(\d+)", own.split("declare -A POSITIONS")[0])
    rows = load_tables()
    assert added == [(name, str(rows[name].splits["train"][0].count)) for name, _ in added] and added
    known = {name for name, _ in added} | set(re.findall(r"\[(\w+)\]=", beside))
    named = {name for found in re.findall(r"(?:TASKS|SOURCES):-([\w,]+)", own) for name in found.split(",")}
    assert len(named) == 15 and named <= known


def ended(script, **environment):
    """How a script ends that finds no command but bash's and the system's."""
    variables = {"PATH": "/usr/bin:/bin", **environment}
    return subprocess.run(["bash", FOLDER / script], env=variables, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("script", "environment", "sentence"),
    [
        ("full_data.sh", {"TASKS": "rte,mine"}, "`TASKS` must be some of .*boolq.* but has mine: add its number"),
        ("few_shot.sh", {"SOURCES": "mine"}, "`SOURCES` must be some of"),
        (
            "num_sources.sh",
            {"SOURCES": "rte,cb", "COUNTS": "1 3"},
            r"`COUNTS` must be of 1 to 2, .* \(rte,cb\), but has 3",
        ),
        ("languages.sh", {"OTHERS": "fi"}, "must have a pair of English and fi, but has en_XX-gl_ES,en_XX-es_XX,en-pt"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is(script, environment, sentence, tmp_path):
    (tmp_path / "lang_pairs.txt").write_text("en_XX-gl_ES,en_XX-es_XX,en-pt\n")
    given = {"GLUE_DIR": str(tmp_path), "DATA": str(tmp_path), "T5": "t5.pt", "RUNS": str(tmp_path / "runs")}
    refused = ended(script, **given, **environment)
    assert refused.returncode == 1 and re.search(sentence, refused.stderr), refused.stderr
    assert not (tmp_path / "runs").exists()


def test_languages_have_the_codes_and_the_tokens_of_their_data(tmp_path):
    """A directory of ML-50's recipe with mBART's pieces; what the script would train is written down."""
    (tmp_path / "lang_pairs.txt").write_text("en_XX-gl_ES,en_XX-es_XX,en_XX-pt_XX,en_XX-fi_FI,en_XX-pt_BR\n")
    (tmp_path / "lang_tok_style.txt").write_text("mbart\n")
    for name, makes in (("fairseq-train", 'mkdir -p "$5"'), ("mtmoe", "true")):
        (tmp_path / name).write_text(f'#!/bin/bash\necho "${{0##*/}} $*" >> "$LOG"\n{makes}\n')
        (tmp_path / name).chmod(0o755)
    given = {"DATA": str(tmp_path), "RUNS": str(tmp_path / "runs"), "LOG": str(tmp_path / "log"), "UPDATES": "3"}
    done = ended("languages.sh", **given, PATH=f"{tmp_path}:/usr/bin:/bin", RELATIVES="es", OTHERS="fi", SIZE="_tiny")
    assert done.returncode == 0, done.stderr
    commands = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    trained = [words for words in commands if words[0] == "fairseq-train"]
    found = [{name: words[words.index(name) + 1] for name in words if name.startswith("--")} for words in trained]
    assert [options["--lang-pairs"] for options in found][1:] == ["en_XX-es_XX", "en_XX-fi_FI", *["en_XX-gl_ES"] * 5]
    assert {options["--lang-tok-style"] for options in found} == {"mbart"}
    assert (found[0]["--warmup-updates"], found[0]["--validate-interval-updates"]) == ("1", "1")
    runs = tmp_path / "runs" / "languages"
    files = [f"{runs}/source_{name}/en_XX-{code}.pt" for name, code in (("es", "es_XX"), ("fi", "fi_FI"))]
    assert found[-1]["--pemt-sources"] == ",".join(files) and commands[-1] == ["mtmoe", "plot", f"{runs}/all"]


@pytest.mark.rare
def test_few_examples_with_sources_and_without(tmp_path):
    """From nothing to the table: a source's file, LoRA and PEMT from four examples, scores; nothing is done twice."""
    make_benchmark(tmp_path, {"train": 300, "dev": 20})
    make_t5(tmp_path / "tiny.pt")
    options = ("--cpu", "--max-update", 2, "--adapter-rank", 4)
    variables = {
        "GLUE_DIR": tmp_path, "T5": tmp_path / "tiny.pt", "RUNS": tmp_path / "runs", "SEEDS": 7, "SIZE": "",
        "SOURCES": "cola", "TASKS": "rte", "SHOTS": 4,
    }  # fmt: skip
    printed = run_script(FOLDER / "few_shot.sh", *options, **variables)
    runs = tmp_path / "runs" / "tiny"
    assert [path.name for path in (runs / "sources-lora" / "cola").glob("*.pt")] == ["cola.pt"]
    log = (runs / "pemt_4-7" / "rte" / "mtmoe.jsonl").read_text(encoding="utf-8")
    begun, *events = [json.loads(line) for line in log.splitlines()]
    assert begun["sizes"] == {"rte": 4}
    assert {tuple(event["sources"]) for event in events if event["event"] == "sources"} == {("cola",)}
    assert all(name in printed for name in ("lora_4", "pemt_4"))
    assert "==" not in run_script(FOLDER / "few_shot.sh", *options, **variables)
