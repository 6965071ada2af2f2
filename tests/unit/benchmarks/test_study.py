"""Studies: the registered file, the sentence where it changed, and trigrams, which models must leave behind."""

import pytest

from fairseq_mtmoe.errors import UserError

STUDY = """
question: q
text: t
rule: r
kill: k
prepare: p
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
    path.write_text(STUDY)
    return path


def test_options_of_a_row_follow_those_it_is_like(file):
    import study_plan

    expected = ["--lr", "1", "--arch", "base_dense", "--arch", "base_moe", "--expert-gates", "task"]
    assert study_plan.load(file).options_of("task") == expected


@pytest.mark.parametrize(("old", "new", "sentence"), [
    ("control: dense", "control: none", "contrasts.0` must be one of its rows, but is none"),
    ("like: base", "like: bass", "rows.task.like` must be one of its rows, but is bass"),
    ("updates: 10", "updates: ten", "must be a study, but is wrong"),
    ("title: BASE", "name: BASE", "must be a study, but is wrong"),
    ("{title: dense}", "{title: dense, rate: base}", "rate` must be one of `rates.rows`, but is base"),
])  # fmt: skip
def test_a_wrong_study_gets_a_sentence(file, old, new, sentence):
    import study_plan

    file.write_text(STUDY.replace(old, new))
    with pytest.raises(UserError, match=sentence):
        study_plan.load(file)


def test_a_study_that_changed_runs_with_a_reason_alone(file, tmp_path):
    import study_plan

    record = tmp_path / "registered.csv"
    study_plan.register(file, record=record)
    file.write_text(f"# a comment changes nothing\n{STUDY}")
    study_plan.register(file, record=record)
    assert len(record.read_text().splitlines()) == 2
    file.write_text(STUDY.replace("updates: 10", "updates: 20"))
    with pytest.raises(UserError, match="has changed since"):
        study_plan.register(file, record=record)
    study_plan.register(file, "too short", record)
    study_plan.register(file, record=record)
    assert record.read_text().splitlines()[-1].endswith("too short")


def test_every_study_of_the_repository_can_be_read():
    import study_plan

    files = sorted(study_plan.STUDIES.glob("*.yaml"))
    assert files
    for path in files:
        study = study_plan.load(path)
        assert study.contrasts and study.seeds and all(map(study.options_of, study.rows))


def test_kneser_ney_by_hand():
    from source_free import KneserNey

    model = KneserNey([[1, 2], [1, 3]], size=5, order=2)
    assert model.probability(2, (9, 1)) == pytest.approx((1 - 0.5) / 2 + 0.5 * 2 / 2 * 0.2)
    assert model.probability(4, (2,)) == pytest.approx(0.2)  # nothing came after 2


def test_kneser_ney_gives_away_all_probability_and_no_more():
    from source_free import KneserNey

    sentences = [[1, 2, 3, 0], [1, 2, 4, 0], [2, 3, 3, 1, 0], [4, 1, 2, 0], [3, 0]]
    model = KneserNey(sentences, size=7)
    for context in [(-1, -1), (-1, 1), (1, 2), (2, 3), (3, 3), (6, 6), (6, 2)]:
        assert sum(model.probability(piece, context) for piece in range(7)) == pytest.approx(1)


def test_results_come_back_as_they_were_written(tmp_path):
    import study

    lines = [dict.fromkeys(study.COLUMNS, "x"), {**dict.fromkeys(study.COLUMNS, ""), "row": 'a, "b"'}]
    study.write_results(tmp_path / "results.csv", lines)
    assert study.read_results(tmp_path / "results.csv") == lines
    assert study.read_results(tmp_path / "none.csv") == []


RATED = STUDY + """
rates: {values: ["1e-3", "2e-3"], rows: [dense], updates: 5, seed: 9}
"""


def test_rates_and_runs_that_the_table_has_are_not_run_again(file, tmp_path, monkeypatch):
    import study
    import study_plan

    file.write_text(RATED.replace("{title: dense}", "{title: dense, rate: dense}"))
    lines = [
        {"study": "one", "row": "dense, rate 1e-3", "seed": "0", "value": "9.5"},
        {"study": "one", "row": "dense, rate 2e-3", "seed": "0", "value": "9.4"},
        {"study": "other", "row": "dense, rate 1e-3", "seed": "0", "value": "1"},
    ]
    same = {"tier": "all", "metric": study.PERPLEXITY, "update": "5"}
    earlier = {"study": "one", "row": "dense, rate 1e-3", "seed": "0", "value": "2", **same, "update": "4"}
    study.write_results(tmp_path / "results.csv", [{**line, **same} for line in lines] + [earlier])
    monkeypatch.setattr(study, "RESULTS", tmp_path / "results.csv")
    one = study_plan.load(file)
    assert study.best_rate(one, tmp_path / "one", "dense") == "2e-3"
    assert study.options_with_rate(one, "dense", tmp_path / "one")[-2:] == ["--lr", "2e-3"]


def test_a_row_goes_on_from_its_branch_which_is_trained_up_to_there_where_it_is_missing(file, tmp_path, monkeypatch):
    import study
    import study_plan

    file.write_text(STUDY.replace("{title: BASE,", "{title: BASE, branch: dense, updates: 4,"))
    calls = []

    def train(options, updates, data, run, seed):
        calls.append((run.name, updates, seed))
        run.mkdir()
        for update in (2, 4):
            (run / f"checkpoint_1_{update}.pt").touch()

    monkeypatch.setattr(study, "_train", train)
    for _ in range(2):
        found = study._branch(study_plan.load(file), "base", tmp_path, tmp_path, 3)
        assert found == tmp_path / "dense-3" / "checkpoint_1_4.pt"
    assert calls == [("dense-3", 4, 3)]
