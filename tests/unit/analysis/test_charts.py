"""Charts show the log's numbers, and can be read without colours."""

import re

import numpy as np
import pytest
import torch
import vl_convert

from fairseq_mtmoe.analysis.charts import experts, look, models
from fairseq_mtmoe.analysis.charts import runs as charts
from fairseq_mtmoe.analysis.charts.models import plane_of
from fairseq_mtmoe.analysis.routing import entropies
from fairseq_mtmoe.analysis.rows import run_of
from tests.helpers.figure_logs import benchmark, translation
from tests.helpers.run_logs import events_of_a_run


def values_of(chart):
    """The points of a chart's parts."""
    spec = chart.to_dict()
    return [spec["datasets"][part["data"]["name"]] for part in spec.get("vconcat", [spec])]


def svg_of(chart):
    return vl_convert.vegalite_to_svg(look.spec_of(chart))


def lines_of(points):
    found = {}
    for point in points:
        if not point.get("sparse"):
            found.setdefault((point["panel"], point["line"]), []).append((point["x"], point["y"]))
    return found


def luminance(color):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in np.array(color) / 255]
    return np.cbrt(np.dot(linear, [0.2126, 0.7152, 0.0722]))


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
    chart = experts.experts([one])
    (every,) = values_of(chart)
    bars = [bar for bar in every if bar["row"].startswith("ac") and bar["column"] == "decoder.layers.1"]
    (row,) = one.of("experts", task="ac", layer="decoder.layers.1")
    shares = row.value / row.value.sum(axis=1, keepdims=True)
    moments = {"update 200": 0, "update 600": 2, "update 1,000": 4}
    assert {(bar["moment"], bar["expert"]): bar["share"] for bar in bars} == {
        (name, expert): pytest.approx(shares[at, expert]) for name, at in moments.items() for expert in range(4)
    }  # fmt: skip
    assert {bar["row"] for bar in bars} == {"ac, 50% of data"}
    moved = 50 * np.abs(shares[0] - shares[4]).sum()
    assert [bar["moved"] for bar in bars if bar["moved"]] == [f"{moved:.0f}% of tokens moved"]
    notes = " ".join(chart.to_dict()["title"]["subtitle"])
    assert "the language's validation sentences (valid) without padding, of the source in encoder" in notes
    assert "Moved: the least share" in notes
    (cells,) = values_of(experts.expert_map([one]))
    of_ac = [cell["value"] for cell in cells if (cell["row"], cell["panel"]) == ("ac", "decoder.layers.1")]
    assert of_ac == pytest.approx(shares[4].tolist())


def test_experts_chooses_the_largest_and_smallest_languages_and_names_runs():
    one = run(pairs=9)
    rows = [f"{name} of data" for name in ("ai, 20%", "ah, 18%", "ab, 4.4%", "aa, 2.2%")]
    assert experts.experts([one]).to_dict()["facet"]["row"]["sort"] == rows
    two = experts.experts([one, run("k3", pairs=9, validations=3)]).to_dict()
    columns = two["facet"]["column"]["sort"]
    assert columns == [f"{name} decoder.layers.1, updates {at} / 1,000" for name, at in (
        ("run", "100 / 500"), ("k3", "333 / 666"))]  # fmt: skip


def test_perplexity_of_one_run_shows_tiers_and_where_it_became_sparse():
    one = run_of(translation(), "run")
    (points,) = values_of(charts.perplexity([one]))
    assert {line.split()[0] for _, line in lines_of(points)} == {"low", "mid", "high", "all"}
    row = one.of("all", metric="ppl")[0]
    assert lines_of(points)["", f"all {row.value[-1]:.2f}"] == list(zip(row.moments.update, row.value, strict=True))
    assert {point["x"] for point in points if point.get("sparse")} == {160}
    (points,) = values_of(charts.perplexity([one], over="minutes"))
    assert [point["x"] for point in points if point.get("sparse")] == pytest.approx([1.6] * 4)


def test_perplexity_of_several_runs_has_a_panel_per_tier_in_the_order_of_tiers():
    chart = charts.perplexity([run("k1"), run("k3", validations=3)])
    tiers = [f"{tier}-resource pairs" for tier in ("low", "mid", "high")]
    assert chart.to_dict()["facet"]["sort"] == [*tiers, "all pairs"]
    (points,) = values_of(chart)
    assert [x for x, _ in lines_of(points)["all pairs", "k3"]] == [333, 666, 1000]


@pytest.mark.parametrize(("validations", "is_cut"), [(40, True), (4, False)])
def test_the_steep_beginning_of_a_long_run_does_not_flatten_the_rest(validations, is_cut):
    chart = charts.perplexity([run(validations=validations)]).to_dict()
    _, high = chart["spec"]["layer"][0]["encoding"]["y"]["scale"]["domain"]
    first = max(point["y"] for point in chart["datasets"][chart["data"]["name"]])
    assert (high < first) == is_cut


def test_metrics_of_one_run_are_lines_with_their_last_values_and_of_several_a_panel_each():
    one = run_of(benchmark(), "tag")
    (points,) = values_of(charts.metrics([one]))
    assert lines_of(points) == {
        ("", "cola, matthews 20.5"): [(10, 10.25), (20, 20.5)], ("", "rte, accuracy 60.0"): [(10, None), (20, 60.0)],
        ("", "Small 60.0"): [(10, 50.0), (20, 60.0)], ("", "All 50.0"): [(10, 40.0), (20, 50.0)],
    }  # fmt: skip
    chart = charts.metrics([one, run_of(benchmark(), "dense")], over="minutes")
    assert chart.to_dict()["facet"]["sort"] == ["cola, matthews", "rte, accuracy", "Small", "All"]
    (points,) = values_of(chart)
    assert lines_of(points)["rte, accuracy", "dense"] == [(pytest.approx(10 / 7), None), (pytest.approx(20 / 7), 60.0)]


def test_balance_is_the_entropy_of_all_tasks_tokens_together():
    (points,) = values_of(charts.balance([run(pairs=2, validations=1)]))
    (row,) = run(pairs=2, validations=1).of("experts", task="aa", layer="encoder.layers.1")
    (other,) = run(pairs=2, validations=1).of("experts", task="ab", layer="encoder.layers.1")
    (entropy,) = entropies(row.value + other.value)
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
    both = charts.sources([one, run_of(translation(), "two")]).to_dict()["facet"]["sort"]
    assert both == ["mean over all layers", "one: rte, update 450", "two: rte, update 450"]


def test_gates_are_alike_where_they_score_experts_alike():
    """Whatever adds the same to all experts' scores does not count."""
    draw = np.random.default_rng(3)
    first, extra = draw.normal(size=(4, 6)), draw.normal(size=6)
    weights = torch.from_numpy(np.stack([first, 2 * first + extra, -first, np.ones((4, 6))]))
    state = {"cfg": {"model": {"task_names": "a,b,c,d"}}, "model": {"layer.moe.gate.weight": weights}}
    (cells,) = values_of(models.gates({"run": state}))
    of_cell = {(cell["row"], cell["column"]): cell["value"] for cell in cells}
    assert of_cell["a", "b"] == pytest.approx(1) and of_cell["a", "c"] == pytest.approx(-1)
    assert of_cell["a", "a"] is None and of_cell["d", "a"] is None  # a gate that chooses nothing
    assert models.gates({"one": state, "two": state}).to_dict()["facet"]["sort"] == ["one", "two"]


def test_the_map_is_of_the_first_two_principal_components():
    """Beside scikit-learn's, whose axes may point the other way."""
    from sklearn.decomposition import PCA

    table_KD = np.random.default_rng(5).normal(size=(6, 9)).astype(np.float32)
    places, shares = plane_of(table_KD)
    expected = PCA(2).fit(table_KD.astype(np.float64))
    np.testing.assert_allclose(np.abs(places), np.abs(expected.transform(table_KD)), atol=1e-6)
    np.testing.assert_allclose(shares, expected.explained_variance_ratio_, atol=1e-6)
    assert all(places[np.abs(places[:, axis]).argmax(), axis] > 0 for axis in range(2))
    table = {"encoder.task_embeddings.weight": torch.from_numpy(table_KD)}
    (points,) = values_of(models.embeddings({"run": {"cfg": {"model": {"task_names": "a,b,c,d,e,f"}}, "model": table}}))
    assert [point["x"] for point in points] == places[:, 0].tolist()
    for few in (np.zeros((3, 4)), np.ones((1, 4))):
        assert np.isfinite(plane_of(few)[0]).all() and plane_of(few)[1] == (0, 0)


def test_every_panel_has_its_own_axis_and_an_empty_place_has_none():
    points = [{"x": x, "y": x, "line": "run", "panel": panel} for panel in "abcde" for x in range(3)]
    assert svg_of(look.lines(points, look.Panel("updates", columns=3))).count(">updates<") == 5


def test_charts_are_saved_whole(tmp_path):
    look.save(charts.movement([run_of(translation(), "run")]), path := tmp_path / "new" / "a.png")
    assert path.read_bytes().startswith(b"\x89PNG") and list(path.parent.iterdir()) == [path]


def test_lines_differ_in_grey_and_without_colour():
    early_to_late = sorted(luminance([*bytes.fromhex(color[1:])]) for color in look.EARLY_TO_LATE)
    assert min(np.diff(early_to_late)) > 0.08
    assert len({tuple(dash) for dash in look.DASHES}) == len(look.DASHES)
    points = [{"x": x, "y": x, "line": str(line), "panel": ""} for line in range(50) for x in (1, 2)]
    drawn = re.findall('line mark" d=[^>]*stroke="([^"]*)"', svg_of(look.lines(points, look.Panel("x"))))
    grey = [luminance([*map(int, re.findall("[0-9]+", color))]) for color in drawn]
    assert len(set(grey)) == 50 and max(grey) < 0.9  # darker than paper
