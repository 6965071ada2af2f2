"""Studies: the registered file, the sentence where it changed, trigrams, which models must leave behind, and texts."""

import gzip
import json
import shutil
from pathlib import Path

import captions_text
import help_text
import languages_text
import pytest
import sentences
import study
import study_figures
import study_plan
from click.testing import CliRunner
from source_free import KneserNey

from tests.helpers.refused import refused

SAID = "question: q\ntext: t\nrule: r\nkill: k\nprepare: p\n"
STUDY = """
updates: 10
options: --lr 1 --arch base_dense
entry: {row: dense}
rows:
  dense: {title: dense}
  base: {title: BASE, options: --arch base_moe}
  task: {title: task gates, like: base, options: --expert-gates task}
contrasts:
  - {row: task, control: dense}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "one.yaml"
    path.write_text(SAID + STUDY)
    return path


def test_options_of_a_row_follow_those_it_is_like(file):
    expected = ["--lr", "1", "--arch", "base_dense", "--arch", "base_moe", "--expert-gates", "task"]
    assert study_plan.load(file).options_of("task") == expected


@pytest.mark.parametrize(("old", "new"), [
    ("control: dense", "control: none"), ("like: base", "like: bass"), ("updates: 10", "updates: ten"),
    ("title: BASE", "name: BASE"),
])  # fmt: skip
def test_a_wrong_study_is_refused(file, old, new):
    file.write_text(SAID + STUDY.replace(old, new))
    with refused("one.yaml"):
        study_plan.load(file)


def test_a_study_that_changed_runs_with_a_reason_alone(file, tmp_path):
    record = tmp_path / "registered.csv"
    record.write_text("study,sha256,date,reason\n")
    study_plan.register(file, record=record)
    file.write_text(f"# a comment changes nothing\n{SAID}{STUDY}")
    study_plan.register(file, record=record)
    assert len(record.read_text().splitlines()) == 2
    file.write_text(SAID + STUDY.replace("updates: 10", "updates: 20"))
    with refused("one.yaml"):
        study_plan.register(file, record=record)
    study_plan.register(file, "too short", record)
    study_plan.register(file, record=record)
    assert record.read_text().splitlines()[-1].endswith("too short")


@pytest.mark.parametrize("path", sorted(study_plan.STUDIES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_study_can_be_read_and_is_registered_as_it_is_if_it_has_figures(path):
    found = study_plan.load(path)
    assert found.contrasts and found.seeds and all(map(found.options_of, found.rows))
    if any(line["study"] == path.stem for line in study_plan.read_table(study.RESULTS)):
        last = {line["study"]: line["sha256"] for line in study_plan.read_table(study_plan.REGISTERED)}
        assert last[path.stem] == study_plan.digest(path)


def test_kneser_ney_gives_away_all_probability_and_no_more():
    sentences = [[1, 2, 3, 0], [1, 2, 4, 0], [2, 3, 3, 1, 0], [4, 1, 2, 0], [3, 0]]
    model = KneserNey(sentences, size=7)
    for context in [(-1, -1), (-1, 1), (1, 2), (2, 3), (3, 3), (6, 6), (6, 2)]:
        assert sum(model.probability(piece, context) for piece in range(7)) == pytest.approx(1)


RATED = STUDY + 'rates: {values: ["1e-3", "2e-3"], rows: [dense], updates: 5, seed: 9}\n'


def test_a_row_has_the_best_rate_of_the_table_after_as_many_updates(file, tmp_path, monkeypatch):
    file.write_text(SAID + RATED.replace("{title: dense}", "{title: dense, rate: dense}"))
    same = {"seed": "0", "tier": "all", "metric": study.PERPLEXITY}
    lines = [
        {**same, "study": name, "row": f"dense, rate {rate}", "value": value, "update": update}
        for name, rate, value, update in (("one", "1e-3", "9.5", "5"), ("one", "2e-3", "9.4", "5"),
                                          ("other", "1e-3", "1", "5"), ("one", "1e-3", "2", "4"))
    ]  # fmt: skip
    study_figures.write_results(tmp_path / "results.csv", lines)
    monkeypatch.setattr(study, "RESULTS", tmp_path / "results.csv")
    runs = study.Runs(study_plan.load(file), tmp_path, tmp_path / "one")
    assert runs.options_with_rate("dense")[-2:] == ["--lr", "2e-3"]


def test_a_row_goes_on_from_its_branch_which_is_trained_up_to_there_where_it_is_missing(file, tmp_path, monkeypatch):
    file.write_text(SAID + STUDY.replace("{title: BASE,", "{title: BASE, branch: dense, updates: 4,"))
    calls = []

    def train(options, updates, data, run, seed):
        calls.append((run.name, updates, seed))
        run.mkdir()
        for update in (2, 4):
            (run / f"checkpoint_1_{update}.pt").touch()

    monkeypatch.setattr(study, "_train", train)
    for _ in range(2):
        found = study.Runs(study_plan.load(file), tmp_path, tmp_path).branch("base", 3)
        assert found == tmp_path / "dense-3" / "checkpoint_1_4.pt"
    assert calls == [("dense-3", 4, 3)]


# ---- studies of a benchmark's tasks ----

TASKS = """
updates: 30
metric: score
tasks: [rte, cb]
groups: {inference: [rte, cb]}
options: --task glue --glue-tasks {task} --init-encoder {pretrained} --total-num-update {updates}
score: --task glue --glue-tasks {task}
seeds: [1, 2]
rates: {values: ["1e-5", "2e-5"], rows: [many], updates: 15, seed: 9}
rows:
  source: {title: source, options: --source, each: [snli], seed: 7}
  many: {title: all in one, rate: many}
  alone: {title: each alone, each: [rte, cb], steps: {rte: 10}, options: "--source-file {runs}/source-snli-7/x.pt"}
contrasts:
  - {row: many, control: alone, primary: true}
"""


@pytest.fixture
def study_of_tasks(tmp_path, monkeypatch):
    """The commands that it ran, and its folder; training and validation leave what they would."""
    (tmp_path / "studies").mkdir()
    (tmp_path / "encoder.pt").touch()
    (tmp_path / "studies" / "glue.yaml").write_text(SAID + TASKS)
    monkeypatch.setattr(study, "STUDIES", tmp_path / "studies")
    monkeypatch.setattr(study, "check_committed", lambda path: None)
    monkeypatch.setattr(study_plan, "register", lambda path, amend: None)
    commands = []

    def execute(command, log):
        commands.append(list(map(str, command)))
        if command[0] == "fairseq-validate":
            tasks = commands[-1][commands[-1].index("--glue-tasks") + 1].split(",")
            found = {task: {"examples": 50, "score": 60 + len(task) + len(commands)} for task in tasks}
            (log.parent / "scores").mkdir()
            (log.parent / "scores" / "scores.json").write_text(json.dumps({"tasks": found}))

    monkeypatch.setattr(study, "_execute", execute)
    return commands, tmp_path


def invoke(command, folder, *words):
    words = (command, "glue", *([folder] if command == "run" else []), "--runs", folder / "runs", *words)
    result = CliRunner().invoke(study.main, list(map(str, words)), catch_exceptions=False)
    assert result.exit_code == 0, result.output


def value_of(command, option):
    return command[command.index(option) + 1]


def test_tasks_are_trained_alone_or_together_and_sources_once(study_of_tasks):
    commands, folder = study_of_tasks
    with refused("--pretrained"):  # which is missing
        invoke("run", folder)
    invoke("run", folder, "--pretrained", folder / "encoder.pt")
    trained = [command for command in commands if command[0] == "fairseq-train"]
    assert [Path(value_of(command, "--save-dir")).name for command in trained] == [
        "rate_1e-5-many", "rate_2e-5-many",
        "source-snli-7", "many-1", "alone-rte-1", "alone-cb-1", "many-2", "alone-rte-2", "alone-cb-2",
    ]  # fmt: skip
    names = ("--glue-tasks", "--max-update", "--total-num-update", "--source-file", "--init-encoder")
    files = [str(folder / path) for path in ("runs/glue/source-snli-7/x.pt", "encoder.pt")]
    assert [value_of(trained[4], name) for name in names] == ["rte", "10", "10", *files]
    assert [value_of(trained[0], name) for name in names[1:3]] == ["15", "15"]  # the sweep's own number of updates
    assert value_of(trained[3], "--glue-tasks") == "rte,cb"
    # The third has the rate of the second, whose score was higher.
    assert [value_of(trained[number], "--lr") for number in (0, 1, 3)] == ["1e-5", "2e-5", "2e-5"]
    done = len(commands)
    invoke("run", folder, "--pretrained", folder / "encoder.pt")
    assert len(commands) == done


def test_on_another_machine_sources_are_trained_again_where_targets_are_missing(study_of_tasks, monkeypatch):
    commands, folder = study_of_tasks
    monkeypatch.setattr(study, "RESULTS", folder / "results.csv")
    words = ("run", folder, "--pretrained", folder / "encoder.pt", "--seeds")
    invoke(*words, 1)
    invoke("record", folder, "--results", folder / "results.csv")
    shutil.rmtree(folder / "runs")
    for seed, expected in ((1, []), (2, ["source-snli-7", "many-2", "alone-rte-2", "alone-cb-2"])):
        commands.clear()
        invoke(*words, seed)
        trained = [command for command in commands if command[0] == "fairseq-train"]
        assert [Path(value_of(command, "--save-dir")).name for command in trained] == expected


def test_scores_of_tasks_get_means_where_all_are_there(study_of_tasks):
    _, folder = study_of_tasks
    invoke("run", folder, "--pretrained", folder / "encoder.pt", "--seeds", "1")
    table, runs = folder / "results.csv", folder / "runs" / "glue"

    def recorded():
        invoke("record", folder, "--results", table)
        alone = [line for line in study_plan.read_table(table) if line["row"] == "alone"]
        return {line["task"] or line["tier"]: float(line["value"]) for line in alone}

    moved = (runs / "alone-cb-1").rename(folder / "later")
    assert recorded().keys() == {"rte"}
    moved.rename(runs / "alone-cb-1")
    alone = recorded()
    assert alone["all"] == alone["inference"] == (alone["rte"] + alone["cb"]) / 2
    before = table.read_text()
    assert recorded() == alone and table.read_text() == before


def test_gates_have_means_over_layers_in_the_table(study_of_tasks):
    _, folder = study_of_tasks
    invoke("run", folder, "--pretrained", folder / "encoder.pt", "--rows", "source,many,alone", "--seeds", "1")
    runs = folder / "runs" / "glue"
    layers = {"one": {"blend": -0.1, "moved": 30.0}, "two": {"blend": 0.3, "moved": 40.0}}
    event = {"event": "gates", "update": 2, "epoch": 1, "subset": "valid", "since": 0, "layers": layers}
    for run in ("many-1", "alone-rte-1"):
        (runs / run / "mtmoe.jsonl").write_text(json.dumps(event) + "\n")
    invoke("record", folder, "--results", folder / "results.csv")
    gates = [line for line in study_plan.read_table(folder / "results.csv") if line["metric"].startswith("gate")]
    found = {(line["row"], line["task"] or line["tier"], line["metric"]): float(line["value"]) for line in gates}
    for run in (("many", "all"), ("alone", "rte")):
        assert (found[*run, "gate blend, %"], found[*run, "gate movement"]) == pytest.approx((20, 35))


# ---- a study of translators with a run for each pair, and one that is not trained ----

PAIRS = """
updates: 30
groups: {new: [en-mr, en-ro]}
options: --init-model {pretrained}
score: --beam 5
seeds: [1, 2]
rates: {values: ["1e-3", "2e-3"], rows: [alone], updates: 8, seed: 9}
rows:
  before: {title: as it is, untrained: true, seed: 1, score: "--lang-pairs en-de,en-mr,en-ro"}
  full: {title: all in one, options: "--lang-pairs en-mr,en-ro --lr 1", score: "--lang-pairs en-de,en-mr,en-ro"}
  alone: {title: each alone, each: [en-mr, en-ro], rate: alone, options: "--lang-pairs {task}"}
contrasts:
  - {row: alone, control: full, group: new, primary: true}
"""


@pytest.fixture
def study_of_pairs(study_of_tasks, monkeypatch):
    """The same of translators; BLEU of a pair is its place among those that are asked for, plus 10."""
    commands, folder = study_of_tasks
    (folder / "studies" / "glue.yaml").write_text(SAID + PAIRS)

    def execute(command, log):
        commands.append(list(map(str, command)))
        if commands[-1][:2] == ["mtmoe", "evaluate"]:
            is_alone, out = "alone-" in value_of(commands[-1], "--path"), Path(value_of(commands[-1], "--out"))
            asked = [log.parent.name[6:11]] if is_alone else value_of(commands[-1], "--lang-pairs").split(",")
            pairs = {pair: {"tier": "low", "sentences": 9, "bleu": 10 + at, "chrf": 1} for at, pair in enumerate(asked)}
            out.mkdir()
            means = {"all": {"pairs": len(pairs), "bleu": 1, "chrf": 1}}
            (out / "scores.json").write_text(json.dumps({"pairs": pairs, "averages": means}))
            for side, lines in (("hyp", "ein Haus\nein Hund da\n"), ("ref", "ein Haus\nder Hund da\n")):
                (out / f"en-de.{side}").write_text(lines)

    monkeypatch.setattr(study, "_execute", execute)
    monkeypatch.setattr(study.Runs, "best_rate", lambda *_: "2e-3")
    return commands, folder


def test_pairs_have_a_run_each_and_a_mean_of_their_own(study_of_pairs):
    commands, folder = study_of_pairs
    words = ("run", folder, "--pretrained", folder / "encoder.pt", "--seeds", "1")
    invoke(*words)
    trained = [command for command in commands if command[0] == "fairseq-train"]
    assert [(Path(value_of(command, "--save-dir")).name, value_of(command, "--lang-pairs"), value_of(command, "--lr"))
            for command in trained] == [
        ("rate_1e-3-alone", "en-mr", "1e-3"), ("rate_2e-3-alone", "en-mr", "2e-3"), ("full-1", "en-mr,en-ro", "1"),
        ("alone-en-mr-1", "en-mr", "2e-3"), ("alone-en-ro-1", "en-ro", "2e-3"),
    ]  # fmt: skip
    paths = [value_of(command, "--path") for command in commands if command[:2] == ["mtmoe", "evaluate"]]
    assert paths[0] == value_of(trained[0], "--init-model") == str(folder / "encoder.pt")
    assert paths[1].endswith("full-1/averaged.pt")
    table = folder / "results.csv"
    invoke("record", folder, "--results", table)
    found = {(line["row"], line["task"] or line["tier"]): float(line["value"])
             for line in study_plan.read_table(table) if line["metric"] == "bleu"}  # fmt: skip
    assert found["before", "en-de"] == 10 and found["full", "new"] == 11.5 and found["alone", "new"] == 10
    assert ("alone", "all") not in found
    done = len(commands)
    other = "  other: {title: of other data, own_data: true, score: --lang-pairs en-ro}\n"
    (folder / "studies" / "glue.yaml").write_text(SAID + PAIRS.replace("contrasts:", f"{other}contrasts:"))
    invoke(*words, "--amend", "a row")
    assert len(commands) == done
    invoke(*words, "--rows", "other")
    assert value_of(commands[done], "--save-dir").endswith("other-1")


def test_further_test_sets_are_scored_and_sentences_are_kept(study_of_pairs):
    commands, folder = study_of_pairs
    text = SAID + PAIRS.replace("updates: 30", "updates: 30\nfurther: [later]")
    (folder / "studies" / "glue.yaml").write_text(text)
    invoke("run", folder, "--pretrained", folder / "encoder.pt", "--seeds", "1", "--rows", "before")
    invoke("record", folder, "--results", folder / "results.csv")
    assert [command[2] for command in commands if command[:2] == ["mtmoe", "evaluate"]] == [
        str(folder), f"{folder}-later"
    ]  # fmt: skip
    lines = study_plan.read_table(folder / "results.csv")
    assert {"bleu", "bleu, later"} <= {line["metric"] for line in lines if line["task"] == "en-de"}
    kept = sentences.read(folder / "sentences" / "glue" / "before-1.npz", ["en-de", "later/en-de"])
    assert kept.shape == (2, 2, 10) and kept[0].sum(0)[:4].tolist() == [5, 5, 4, 2]


# ---- the text of `languages`: no test line is nearly a training line ----


def test_a_pair_goes_if_one_side_shares_four_fifths_of_its_grams_with_one_training_line():
    train = [("I have never been to Paris.", "Ich war nie in Paris."), ("Where is the station?", "Wo ist der Bahnhof?")]
    kept = [
        ("I have never been to Perth.", "nie"),  # 18 of 23 5-grams
        ("I have never been. Where is the station?", "wo"),  # its 5-grams lie in two lines
        ("Yes.", "Ja."),
    ]
    near = [
        ("I have  never been to paris.", "nie"),  # the same but for spaces and case
        ("I have never been to Paris!", "nie"),  # 22 of 23
        ("Where's the railway?", "Wo ist der Bahnhof?"),
    ]
    assert languages_text.without_near_copies([*near, *kept], train) == kept


# ---- the text of `captions`: Multi30k's first pairs, without those of validation and test ----


def test_captions_are_the_first_pairs_whose_english_is_not_held_out(tmp_path, monkeypatch):
    monkeypatch.setattr(captions_text, "PAIRS", {"de": 2})
    raw = tmp_path / "dataset" / "data" / "task1" / "raw"
    raw.mkdir(parents=True)
    texts = {"train": "Stone &amp;  tile.|Held out.|A dog.|A cat.", "val": "Held out.", "test_2016_flickr": "A tree."}
    for name, lines in {**texts, "test_2018_flickr": "A house."}.items():
        for code in ("en", "de"):
            text = "".join(f"{line}\n" for line in lines.split("|"))
            (raw / f"{name}.{code}.gz").write_bytes(gzip.compress(text.encode()))
    result = CliRunner().invoke(captions_text.main, [str(tmp_path / "dataset"), str(tmp_path / "RAW")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "RAW" / "train.en-de.en").read_text() == "Stone & tile.\nA dog.\n"
    assert (tmp_path / "RAW" / "test.en-de.de").read_text() == "A tree.\n"
    assert [path.name for path in tmp_path.glob("RAW-*/test.en-de.de")] == ["test.en-de.de"]


# ---- the text of `help`: LibreOffice's paragraphs, by their ids ----

PAGE = """<html><head><title>Not a paragraph</title></head><body>
<h1 id="hd_id1">{0} one</h1><p id="par_id1">{0} <b>two</b><br>three &amp; four</p>
<p id="par_id2">{0} press <span class="switchinline"><span hidden="true" id="MAC1" class="MAC">Command</span>
<span hidden="true" id="default1">Ctrl</span></span>+C</p>
<p id="par_id3">{0} in <span hidden="true" id="CALC1" class="CALC">Calc</span></p>
<p id="par_id1">{0} again</p><p>{0} without an id</p><p id="par_id5">12</p></body></html>
"""


def test_paragraphs_have_the_default_system_and_are_aligned_by_their_ids(tmp_path, monkeypatch):
    monkeypatch.setattr(help_text, "LANGUAGES", ("pt", "tr"))
    pages = {"en-US": PAGE.format("the"), "pt-BR": PAGE.format("o"), "tr": '<p id="par_id1">bir iki</p>'}
    for folder, page in pages.items():
        (tmp_path / folder / "text").mkdir(parents=True)
        (tmp_path / folder / "text" / "page.html").write_text(page, encoding="utf-8")
    assert help_text.aligned(tmp_path) == {
        "the one": {"pt": "o one"},
        "the two three & four": {"pt": "o two three & four", "tr": "bir iki"},
        "the press Ctrl+C": {"pt": "o press Ctrl+C"},
    }


def test_no_test_paragraph_of_the_help_is_nearly_a_training_one(monkeypatch):
    for name, value in {"LANGUAGES": ("de", "tr"), "POOL": 40, "TEST": 10, "VALID": 8}.items():
        monkeypatch.setattr(help_text, name, value)
    rows = {}
    for number in range(60):
        text = f"Choose the menu {number} and press the key {number}"
        rows[f"{text}."] = {"de": "eins zwei drei vier", "tr": "b"}
        if number < 30:
            rows[f"{text} now."] = {"de": "eins zwei drei vier"}
    splits = help_text.split(rows)
    assert [len(splits[name]) for name in ("test", "valid")] == [10, 8]
    held = {*splits["test"], *splits["valid"]}
    assert all(len(rows[english]) == 2 for english in held) and not held & set(splits["train"])
    assert min(int(english.split()[3]) for english in held) >= 30  # the others have a near copy in training
    assert help_text.memory_bleu(rows, splits) == [pytest.approx(100), 0]
