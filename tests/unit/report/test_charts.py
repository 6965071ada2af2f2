"""Charts show the log's numbers."""

import numpy as np
import pytest
import torch

from fairseq_mtmoe.report.charts import experts, models
from fairseq_mtmoe.report.charts import runs as charts
from fairseq_mtmoe.report.charts.models import plane_of
from fairseq_mtmoe.report.routing import entropies
from fairseq_mtmoe.report.rows import run_of
from tests.helpers.figure_logs import benchmark, translation
from tests.helpers.run_logs import events_of_a_run


def values_of(chart):
    """The points of a chart's parts."""
    spec = chart.to_dict()
    return [spec["datasets"][part["data"]["name"]] for part in spec.get("vconcat", [spec])]


def lines_of(points):
    found = {}
    for point in points:
        if not point.get("sparse"):
            found.setdefault((point["panel"], point["line"]), []).append((point["x"], point["y"]))
    return found


def run(name="run", **options):
    return run_of(events_of_a_run(**options), name)


def test_sampling_shows_every_pair_and_the_temperature_and_runs_side_by_side():
    top, bottom = values_of(charts.sampling([run(pairs=2)]))
    third = pytest.approx(0.5)
    assert lines_of(top) == {("run", f"en-{name} 50%"): [(n, third) for n in range(1, 5)] for name in ("aa", "ab")}
    assert lines_of(bottom) == {("run", "temperature"): [(n, n) for n in range(1, 5)]}
    top, _ = values_of(charts.sampling([run("k1"), run("k3")]))
    assert {panel for panel, _ in lines_of(top)} == {"k1", "k3"} and ("k1", "en-aa") in lines_of(top)


def test_experts_shows_the_logged_shares_at_early_middle_and_late_updates():
    one = run(pairs=3, validations=5)
    (every,) = values_of(experts.experts([one]))
    bars = [bar for bar in every if bar["row"].startswith("ac") and bar["column"] == "decoder.layers.1"]
    (row,) = one.of("experts", task="ac", layer="decoder.layers.1")
    shares = row.value / row.value.sum(axis=1, keepdims=True)
    moments = {"update 200": 0, "update 600": 2, "update 1,000": 4}
    assert {(bar["moment"], bar["expert"]): bar["share"] for bar in bars} == {
        (name, expert): pytest.approx(shares[at, expert]) for name, at in moments.items() for expert in range(4)
    }  # fmt: skip
    moved = 50 * np.abs(shares[0] - shares[4]).sum()
    assert [bar["moved"] for bar in bars if bar["moved"]] == [f"{moved:.0f}% of tokens moved"]
    (cells,) = values_of(experts.expert_map([one]))
    of_ac = [cell["value"] for cell in cells if (cell["row"], cell["panel"]) == ("ac", "decoder.layers.1")]
    assert of_ac == pytest.approx(shares[4].tolist())
    # The largest and smallest languages
    rows = [f"{name} of data" for name in ("ai, 20%", "ah, 18%", "ab, 4.4%", "aa, 2.2%")]
    assert experts.experts([run(pairs=9)]).to_dict()["facet"]["row"]["sort"] == rows


def test_perplexity_shows_tiers_over_updates_or_minutes_and_where_a_run_became_sparse():
    one = run_of(translation(), "run")
    (points,) = values_of(charts.perplexity([one]))
    assert {line.split()[0] for _, line in lines_of(points)} == {"low", "mid", "high", "all"}
    row = one.of("all", metric="ppl")[0]
    of_all = list(zip(row.update, row.value, strict=True))
    assert lines_of(points)["", f"all pairs {row.value[-1]:.2f}"] == of_all
    assert {point["x"] for point in points if point.get("sparse")} == {160}
    (points,) = values_of(charts.perplexity([one, run("k3", validations=3)], over="minutes"))
    assert [point["x"] for point in points if point.get("sparse")] == pytest.approx([1.6] * 4)
    assert [x for x, _ in lines_of(points)["all pairs", "k3"]] == pytest.approx([3.33, 6.66, 10])
    for number, size in ((1, 0), (2, 11)):  # without a name above the only panel there is no room for one
        compared = charts.perplexity([run(f"k{one}") for one in range(number)])
        assert compared.to_dict()["facet"]["header"]["labelFontSize"] == size
    # The steep beginning of a long run does not flatten the rest.
    chart = charts.perplexity([run(validations=40)]).to_dict()
    _, high = chart["spec"]["layer"][0]["encoding"]["y"]["scale"]["domain"]
    assert high < max(point["y"] for point in chart["datasets"][chart["data"]["name"]])
    # Marks above the panel would leave a gap in its picture.
    assert all(layer["mark"]["clip"] for layer in chart["spec"]["layer"] if "y" in layer["encoding"])


def test_metrics_of_one_run_are_lines_with_their_last_values_and_of_several_a_panel_each():
    one = run_of(benchmark(), "tag")
    (points,) = values_of(charts.metrics([one]))
    assert lines_of(points) == {
        ("", "cola, matthews 20.5"): [(10, 10.25), (20, 20.5)], ("", "rte, accuracy 60.0"): [(10, None), (20, 60.0)],
        ("", "Small 60.0"): [(10, 50.0), (20, 60.0)], ("", "All 50.0"): [(10, 40.0), (20, 50.0)],
    }  # fmt: skip
    (points,) = values_of(charts.metrics([one, run_of(benchmark(), "dense")]))
    assert lines_of(points)["rte, accuracy", "dense"] == [(10, None), (20, 60.0)]


def test_balance_is_the_entropy_of_all_tasks_tokens_together():
    one = run(pairs=2, validations=1)
    (points,) = values_of(charts.balance([one]))
    (entropy,) = entropies(sum(row.value for row in one.of("experts", layer="encoder.layers.1")))
    assert lines_of(points)["run", "encoder.layers.1"] == [(1000, pytest.approx(entropy))]


def test_selection_has_shares_and_entropies_and_how_much_of_the_data_was_seen():
    top, bottom = values_of(charts.selection([run_of(translation(), "run")]))
    panel = "run: 30% of the data"
    assert lines_of(top)[panel, "y 7.2%"] == [(at, pytest.approx(7 / (at / 5 + 7))) for at in (150, 300, 450)]
    assert [y for _, y in lines_of(bottom)[panel, "x 25%"]] == pytest.approx([1 / 2, 1 / 3, 1 / 4])


def test_sources_show_the_weight_of_each_in_each_layer_and_the_means_of_several_runs():
    one = run_of(translation(), "one")
    (bars,) = values_of(charts.sources([one]))
    of_source = {(bar["x"], bar["line"]): bar["y"] for bar in bars}
    assert of_source["a", "mnli"] == 0.75 and of_source["b", "mnli"] == pytest.approx(0.3)
    assert of_source["all layers", "mnli"] == pytest.approx(0.525) and of_source["c", "qnli"] is None
    assert {bar["panel"] for bar in bars} == {"one: rte, update 450"}
    (bars,) = values_of(charts.sources([one, run_of(translation(), "two")]))
    assert {bar["x"] for bar in bars if bar["panel"] == "mean over all layers"} == {"one", "two"}


def test_gates_are_alike_where_they_score_experts_alike():
    draw = np.random.default_rng(3)
    first, extra = draw.normal(size=(4, 6)), draw.normal(size=6)
    weights = torch.from_numpy(np.stack([first, 2 * first + extra, -first, np.ones((4, 6))]))
    state = {"cfg": {"model": {"task_names": "a,b,c,d"}}, "model": {"layer.moe.gate.weight": weights}}
    (cells,) = values_of(models.gates({"run": state}))
    of_cell = {(cell["row"], cell["column"]): cell["value"] for cell in cells}
    assert of_cell["a", "b"] == pytest.approx(1) and of_cell["a", "c"] == pytest.approx(-1)
    assert of_cell["a", "a"] is None and of_cell["d", "a"] is None  # a gate that chooses nothing


def test_the_map_is_of_the_first_two_principal_components():
    from sklearn.decomposition import PCA

    table_KD = np.random.default_rng(5).normal(size=(6, 9)).astype(np.float32)
    places, shares = plane_of(table_KD)
    expected = PCA(2).fit(table_KD.astype(np.float64))  # its axes may point the other way
    np.testing.assert_allclose(np.abs(places), np.abs(expected.transform(table_KD)), atol=1e-6)
    np.testing.assert_allclose(shares, expected.explained_variance_ratio_, atol=1e-6)
    assert all(places[np.abs(places[:, axis]).argmax(), axis] > 0 for axis in range(2))
    table = {"encoder.task_embeddings.weight": torch.from_numpy(table_KD)}
    (points,) = values_of(models.embeddings({"run": {"cfg": {"model": {"task_names": "a,b,c,d,e,f"}}, "model": table}}))
    assert [point["x"] for point in points] == places[:, 0].tolist()
    for few in (np.zeros((3, 4)), np.ones((1, 4))):
        assert np.isfinite(plane_of(few)[0]).all() and plane_of(few)[1] == (0, 0)
