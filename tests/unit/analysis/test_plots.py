"""The pictures show the log's numbers, and can be read without colours."""

import dataclasses
import itertools
import math

import matplotlib.colors
import numpy as np
import pytest

from fairseq_mtmoe.analysis import plots
from fairseq_mtmoe.analysis.embeddings import TaskEmbeddingTable
from fairseq_mtmoe.analysis.gates import TaskGates
from fairseq_mtmoe.analysis.plots import experts, perplexity, sheet
from fairseq_mtmoe.analysis.series import (
    ExpertSeries,
    MetricSeries,
    PerplexitySeries,
    Run,
    SamplingSeries,
    SelectionSeries,
)
from fairseq_mtmoe.analysis.sources import SourceWeights


def make_run(name="run", pairs=3, epochs=4, num_experts=4, sparsified_at=None, layers=("encoder.layers.1",)):
    updates = [100 * (epoch + 1) for epoch in range(epochs)]
    langs = [f"l{index}" for index in range(pairs)]
    weights = np.arange(pairs, 0, -1.0) / np.arange(pairs, 0, -1.0).sum()
    rng = np.random.default_rng(len(name))
    return Run(
        name,
        SamplingSeries(list(range(1, epochs + 1)), [1 + 0.1 * e for e in range(epochs)],
                       {f"en-{lang}": [float(w)] * epochs for lang, w in zip(langs, weights, strict=True)}),
        ExpertSeries(updates, langs, list(layers),
                     {layer: {lang: rng.dirichlet([1.0] * num_experts, epochs).tolist() for lang in langs}
                      for layer in layers}),
        PerplexitySeries(updates, [u / 50 for u in updates],
                         {"low": [900.0 / u for u in updates], "all": [500.0 / u for u in updates]}),
        sparsified_at,
        dict(zip(langs, weights.tolist(), strict=True)),
    )  # fmt: skip


def lines(axes):
    return {line.get_gid(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()}


def expert_bars(axes):
    """Their heights, by what they are of."""
    found = {}
    for bar in axes.patches:
        found.setdefault(bar.get_gid(), []).append(bar.get_height())
    return found


def luminance(color):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in matplotlib.colors.to_rgb(color)]
    return np.cbrt(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def test_sampling_shows_every_pair_and_the_temperature():
    run = make_run()
    top, bottom = plots.sampling_figure([run]).axes
    assert lines(top) == {pair: (run.sampling.epochs, values) for pair, values in run.sampling.probabilities.items()}
    assert lines(bottom) == {"temperature": (run.sampling.epochs, run.sampling.temperatures)}
    assert [text.get_text() for text in top.texts] == ["en-l0 50%", "en-l1 33%", "en-l2 17%"]


def test_runs_stand_side_by_side_under_their_names():
    figure = plots.sampling_figure([make_run("k1"), make_run("k3")])
    assert [axes.get_title("left") for axes in figure.axes[::2]] == ["k1", "k3"]


def test_sampling_without_a_temperature_says_so():
    run = make_run()
    run.sampling.temperatures[:] = [math.nan] * 4
    assert [text.get_text() for text in plots.sampling_figure([run]).axes[1].texts] == ["no temperature"]


def test_fifty_pairs_keep_their_labels_apart():
    figure = plots.sampling_figure([make_run(pairs=50, epochs=30)])
    axes = figure.axes[0]
    places = sorted(text.xyann[1] for text in axes.texts)
    assert len(places) == 50
    assert min(np.diff(places)) * axes.bbox.height >= sheet.LABEL_SIZE / 72 * figure.dpi
    assert places[0] > -0.02 and places[-1] < 1.02


def test_experts_shows_the_logged_shares_at_early_middle_and_late_updates():
    run = make_run(epochs=5, layers=("a", "b"))
    figure = plots.experts_figure([run], tasks=["l2"], layers=["b"])
    (axes,) = figure.axes
    assert axes.get_ylabel() == "l2\n17% of data"
    shares = run.experts.shares["b"]["l2"]
    assert {name: y for name, (_, y) in lines(axes).items()} == {"uniform": [0.25, 0.25]}  # experts have no order
    assert expert_bars(axes) == {f"l2 {u}": shares[i] for i, u in ((0, 100), (2, 300), (4, 500))}
    middles = sorted(bar.get_x() + bar.get_width() / 2 for bar in axes.patches if bar.get_gid() == "l2 300")
    assert middles == pytest.approx([0, 1, 2, 3])
    moved = 100 * sum(abs(x - y) for x, y in zip(shares[0], shares[4], strict=True)) / 2
    assert axes.texts[0].get_text() == f"{moved:.0f}% of tokens moved"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "update 100", "update 300", "update 500", "equal shares",
    ]  # fmt: skip


def test_experts_chooses_the_largest_and_smallest_languages_and_four_layers():
    run = make_run(pairs=9, layers=tuple("abcdefgh"))
    assert experts.default_tasks(run) == ["l0", "l1", "l7", "l8"]
    assert experts.default_layers(run, 1) == ["a", "c", "f", "h"]
    assert experts.default_layers(run, 2) == ["h"]
    assert len(plots.experts_figure([run]).axes) == 16


def test_experts_compares_runs_and_says_what_is_missing():
    run = make_run("k1")
    empty = make_run("k3")
    empty.experts.shares["encoder.layers.1"]["l0"] = [[], [], [], []]
    figure = plots.experts_figure([run, empty], tasks=["l0"])
    left, right = figure.axes
    assert left.get_title().splitlines() == ["k1", "encoder.layers.1", "updates 100 / 200 / 400"]
    assert [text.get_text() for text in right.texts] == ["not logged"]
    assert right.get_lines()[:] == right.patches[:] == []


def test_experts_says_which_run_they_are_of_if_others_have_none():
    layer = "encoder.layers.1"
    for named, title in ((False, [layer]), (True, ["k1", layer, "updates 100 / 200 / 400"])):
        figure = plots.experts_figure([make_run("k1")], tasks=["l0"], named=named)
        assert figure.axes[0].get_title().splitlines() == title


@pytest.mark.parametrize("arguments", [{}, {"layers": ["a"]}, {"layers": ["a"], "updates": range(100, 900, 100)}])
def test_title_and_legend_fit_on_the_sheet(arguments):
    figure = plots.experts_figure([make_run(epochs=8, layers=("a", "b"))], **arguments)
    figure.canvas.draw()
    legend = figure.legends[0].get_window_extent()
    assert legend.x1 <= figure.bbox.x1 and figure.texts[0].get_window_extent().x1 <= figure.bbox.x1
    assert legend.y0 >= max(axes.get_window_extent().y1 for axes in figure.axes)
    notes = figure.texts[1].get_window_extent()
    assert notes.x1 <= figure.bbox.x1 and notes.y0 >= 0
    assert notes.y1 <= min(axes.get_tightbbox().y0 for axes in figure.axes)


def test_experts_says_which_tokens_it_counts_and_what_moved_means():
    run = make_run(epochs=3)
    run = dataclasses.replace(run, experts=dataclasses.replace(run.experts, subset="valid1"))
    counted = "the language's validation sentences (valid1) without padding, of the source in encoder layers and"
    text = " ".join(plots.experts_figure([run]).texts[1].get_text().split())
    assert counted in text and "Moved: the least share of these tokens that changed their expert from the first" in text
    text = " ".join(plots.experts_figure([run], updates=[100]).texts[1].get_text().split())
    assert counted in text and "Moved" not in text


def test_experts_draws_more_than_three_moments_light_to_dark():
    figure = plots.experts_figure([make_run(epochs=6)], tasks=["l0"], updates=[100, 200, 300, 400, 500])
    shades = {bar.get_gid(): luminance(bar.get_facecolor()) for bar in figure.axes[0].patches}
    assert len(shades) == 5 and list(shades.values()) == sorted(shades.values(), reverse=True)


def test_perplexity_of_one_run_shows_tiers_and_sparsification():
    run = make_run(sparsified_at=150)
    (axes,) = plots.perplexity_figure([run]).axes
    drawn = lines(axes)
    assert drawn.pop("sparsified")[0] == [150, 150]
    assert drawn == {name: (run.perplexity.updates, values) for name, values in run.perplexity.groups.items()}
    labels = [text.get_text() for text in axes.texts]
    assert {"low 2.25", "all 1.25"} < set(labels)


def test_perplexity_over_minutes_moves_sparsification_along():
    (axes,) = plots.perplexity_figure([make_run(sparsified_at=150)], over="minutes").axes
    assert lines(axes)["sparsified"][0] == [3.0, 3.0]
    assert lines(axes)["all"][0] == [2.0, 4.0, 6.0, 8.0]


def test_perplexity_of_several_runs_has_a_panel_per_tier():
    runs = [make_run("k1"), make_run("k3", epochs=3)]
    figure = plots.perplexity_figure(runs)
    assert [axes.get_title("left") for axes in figure.axes] == ["low-resource pairs", "all pairs"]
    low = lines(figure.axes[0])
    assert low == {run.name: (run.perplexity.updates, run.perplexity.groups["low"]) for run in runs}


def test_the_steep_beginning_of_a_long_run_does_not_flatten_the_rest():
    steep = make_run(epochs=40)
    steep.perplexity.groups["all"][0] = 1e5
    (axes,) = plots.perplexity_figure([steep]).axes
    assert axes.get_ylim()[1] < 10
    short = make_run(epochs=4)
    short.perplexity.groups["all"][0] = 1e5
    assert plots.perplexity_figure([short]).axes[0].get_ylim()[1] > 1e5


def test_missing_values_leave_gaps():
    run = make_run()
    run.perplexity.groups["all"][1] = math.nan
    run.sampling.probabilities["en-l0"][3] = math.nan
    (axes,) = plots.perplexity_figure([run]).axes
    assert math.isnan(lines(axes)["all"][1][1])
    assert "en-l0 50%" in [text.get_text() for text in plots.sampling_figure([run]).axes[0].texts]


@pytest.mark.parametrize("looks", [perplexity.GROUP_LOOKS.values(), sheet.LOOKS[:3]])
def test_lines_differ_in_grey_and_without_colour(looks):
    for one, other in itertools.combinations(looks, 2):
        assert abs(luminance(one.color) - luminance(other.color)) > 0.08
        assert one.linestyle != other.linestyle and one.marker != other.marker


def test_all_looks_are_different():
    for field in ("color", "linestyle", "marker"):
        assert len({getattr(look, field) for look in sheet.LOOKS}) == len(sheet.LOOKS)
    assert len(set(sheet.shades(50))) == 50
    grey = [luminance(shade) for shade in sheet.shades(50)]
    assert grey == sorted(grey) and grey[-1] < 0.9  # darker than paper


def test_labels_are_spread_as_little_as_possible():
    assert sheet.spread([0.1, 0.5, 0.9], 0.1) == [0.1, 0.5, 0.9]
    assert sheet.spread([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])
    assert sheet.spread([0.52, 0.5, 0.1], 0.1) == pytest.approx([0.56, 0.46, 0.1])
    assert sheet.spread([0.0, 0.0, 0.0], 0.1) == pytest.approx([0.0, 0.1, 0.2])  # stays inside
    assert sheet.spread([0.99, 1.0], 0.1) == pytest.approx([0.9, 1.0])
    crowded = sheet.spread([0.3] * 21, 0.1)
    assert np.diff(crowded) == pytest.approx([0.1] * 20) and np.mean(crowded) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(4, 60, [5, 10, 20, 50]), (6, 30, [6, 8, 10, 15, 20, 30]), (3, 4e4, [10, 100, 1000, 1e4])],
)
def test_ticks_are_round(low, high, expected):
    assert sheet.round_numbers(low, high) == pytest.approx(expected)
    assert len(sheet.round_numbers(10, 11)) >= 3


def test_numbers_are_short():
    assert [sheet.percent(share) for share in (0.262, 0.044, 0.0042)] == ["26%", "4.4%", "0.42%"]
    assert [sheet.thousands(value) for value in (0, 2500, 50_000)] == ["0", "2.5k", "50k"]


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_pictures_are_saved_whole_in_every_format(tmp_path, suffix):
    path = tmp_path / "new" / f"a.{suffix}"
    plots.save(plots.perplexity_figure([make_run()]), path)
    assert path.stat().st_size > 5000
    assert list(path.parent.iterdir()) == [path]


def test_runs_without_numbers_still_give_a_picture():
    run = make_run()
    run.perplexity.groups["all"][:] = [math.nan] * 4
    run.perplexity.groups["low"][:] = [math.nan] * 4
    assert plots.perplexity_figure([run]).axes


# ---- a benchmark's ----


def benchmark_run(name="run", tasks=("cola", "rte", "sst2"), epochs=4):
    run = make_run(name, pairs=len(tasks), epochs=epochs)
    shares = {layer: dict(zip(tasks, rows.values(), strict=True)) for layer, rows in run.experts.shares.items()}
    values = {task: [50.0 + place + 3 * epoch for epoch in range(epochs)] for place, task in enumerate(tasks)}
    return dataclasses.replace(
        run,
        experts=dataclasses.replace(run.experts, tasks=list(tasks), shares=shares, subset="valid"),
        data=dict(zip(tasks, run.data.values(), strict=True)),
        metrics=MetricSeries(run.experts.updates, run.perplexity.minutes, values,
                             dict.fromkeys(tasks, "accuracy"), {"small": values[tasks[0]], "all": values[tasks[1]]}),
    )  # fmt: skip


def test_a_benchmarks_pictures_speak_of_tasks():
    run = benchmark_run(tasks=tuple("abcdefgh"))
    figure = plots.experts_figure([run])
    assert figure.texts[0].get_text() == "Which experts a task's tokens go to"
    assert "the tokens of the task's validation examples (valid)" in " ".join(figure.texts[1].get_text().split())
    assert [axes.get_ylabel().split("\n")[0] for axes in figure.axes] == list("abcdefgh")  # all, as they are few
    assert plots.sampling_figure([run]).texts[0].get_text() == "How often each task is drawn"
    many = benchmark_run(tasks=tuple("abcdefghijkl"))
    assert experts.default_tasks(many) == list("abcdehijkl")


def test_metrics_of_one_run_are_lines_with_their_last_values():
    run = benchmark_run()
    (axes,) = plots.metrics_figure([run]).axes
    wanted = {**run.metrics.sets, **run.metrics.averages}
    assert lines(axes) == {name: (run.metrics.updates, values) for name, values in wanted.items()}
    labels = {text.get_text() for text in axes.texts}
    assert labels == {"cola, accuracy 59.0", "rte, accuracy 60.0", "sst2, accuracy 61.0", "Small 59.0", "All 60.0"}


def test_a_label_stands_beside_its_line_where_there_is_room():
    run = benchmark_run()
    for place, name in enumerate(run.metrics.sets):
        run.metrics.sets[name][:] = [20.0 + 30 * place] * 4
    run.metrics.averages.clear()
    figure = plots.metrics_figure([run])
    figure.canvas.draw()
    (axes,) = figure.axes
    for line, text in zip(axes.get_lines(), axes.texts, strict=True):
        _, y = axes.transAxes.inverted().transform(axes.transData.transform(sheet.last_point(line)))
        assert text.xyann[1] == pytest.approx(y, abs=0.05), text.get_text()


def test_metrics_of_several_runs_have_a_panel_per_task():
    runs = [benchmark_run("tag"), benchmark_run("dense", epochs=3)]
    figure = plots.metrics_figure(runs, over="minutes")
    assert [axes.get_title("left") for axes in figure.axes] == [
        *(f"{task}, accuracy" for task in ("cola", "rte", "sst2")), "Small", "All",
    ]  # fmt: skip
    assert lines(figure.axes[1]) == {run.name: (run.metrics.minutes, run.metrics.sets["rte"]) for run in runs}


def test_gates_are_alike_where_they_score_experts_alike():
    """Whatever adds the same to all experts' scores does not count."""
    draw = np.random.default_rng(3)
    first, shift = draw.normal(size=(4, 6)), draw.normal(size=6)
    gates = TaskGates(["a", "b", "c", "d"], {"layer": np.stack([first, 2 * first + shift, -first, np.ones((4, 6))])})
    cosines = gates.similarities()["layer"]
    np.testing.assert_allclose(cosines[:3, :3], [[1, 1, -1], [1, 1, -1], [-1, -1, 1]], atol=1e-12)
    assert np.isnan(cosines[3]).all()


def test_gates_of_one_run_have_a_panel_per_layer_and_their_mean():
    draw = np.random.default_rng(3)
    gates = TaskGates(["cola", "rte", "sst2"], {f"encoder.layers.{n}": draw.normal(size=(3, 4, 8)) for n in range(4)})
    figure = plots.gates_figure({"run": gates})
    limit = max(abs(cosines[~np.eye(3, dtype=bool)]).max() for cosines in gates.similarities().values())
    assert [axes.get_title() for axes in figure.axes] == ["all layers", *gates.weights]
    mean = np.mean(list(gates.similarities().values()), axis=0)
    drawn = figure.axes[0].get_images()[0].get_array()
    np.testing.assert_allclose(drawn[~np.eye(3, dtype=bool)], mean[~np.eye(3, dtype=bool)])
    assert f"{mean[0, 1]:.2f}".replace("0.", ".").replace("-", "−") in [t.get_text() for t in figure.axes[0].texts]
    assert figure.axes[0].get_images()[0].get_clim() == pytest.approx((-limit, limit))
    figure.canvas.draw()
    for text in figure.texts:
        assert text.get_window_extent().x0 >= 0 and text.get_window_extent().y0 >= 0
    assert figure.axes[-1].get_tightbbox().y0 >= figure.texts[1].get_window_extent().y1


def test_gates_that_differ_by_chance_stay_pale():
    weights = np.stack([np.eye(8), np.roll(np.eye(8), 1, axis=1)])
    figure = plots.gates_figure({"run": TaskGates(["a", "b"], {"layer": weights})})
    assert figure.axes[0].get_images()[0].get_clim() == (-0.25, 0.25)


def test_gates_of_several_runs_have_a_panel_each():
    draw = np.random.default_rng(3)
    runs = {name: TaskGates(list(tasks), {"a": draw.normal(size=(len(tasks), 4, 8))})
            for name, tasks in (("one", "abc"), ("two", "abcd"))}  # fmt: skip
    figure = plots.gates_figure(runs)
    assert [axes.get_title() for axes in figure.axes] == ["one", "two"]
    assert [len(axes.get_xticklabels()) for axes in figure.axes] == [3, 4]


def test_selection_shows_each_tasks_share_of_what_was_trained_on():
    series = SelectionSeries([10, 20, 30], {"cola": [24, 16, 0], "rte": [8, 16, 0]},
                             {"cola": [0.9, 0.5, 0.5], "rte": [0.4, 0.5, math.nan]}, [0.1, 0.2, 0.25])  # fmt: skip
    figure = plots.selection_figure([dataclasses.replace(make_run(), selection=series)])
    top, bottom = figure.axes
    drawn = lines(top)
    assert drawn["cola"] == ([10, 20, 30], [0.75, 0.5, 0.0]) and drawn["rte"] == ([10, 20, 30], [0.25, 0.5, 0.0])
    assert lines(bottom)["cola"] == ([10, 20, 30], [0.9, 0.5, 0.5])
    assert top.get_title("right") == "25% of the data"
    assert [text.get_text() for text in bottom.texts] == ["cola 50%", "rte 50%"]


def test_selections_of_several_runs_stand_side_by_side():
    runs = [
        dataclasses.replace(make_run(name), selection=SelectionSeries([1], {"a": [1]}, {"a": [1.0]}, [math.nan]))
        for name in ("one", "two")
    ]
    figure = plots.selection_figure(runs)
    assert [axes.get_title("left") for axes in figure.axes] == ["one", "", "two", ""]
    assert figure.axes[0].get_title("right") == ""
    low, high = figure.axes[1].get_xlim()
    assert [tick for tick in figure.axes[1].get_xticks() if low <= tick <= high] == [1], "updates are whole numbers"


def borrowing(name, layers, sources=("mnli", "qnli"), target="rte"):
    return dataclasses.replace(make_run(name), sources=SourceWeights(1200, target, sources, layers))


def bars(axes):
    """By source, the height of each bar, below whose name it stands."""
    labels = [label.get_text() for label in axes.get_xticklabels()]
    return {
        container.patches[0].get_gid(): dict(zip(labels, [bar.get_height() for bar in container], strict=True))
        for container in axes.containers
    }


def test_sources_show_the_weight_of_each_in_each_layer():
    run = borrowing("run", {"encoder.layers.0": [0.75, 0.25], "decoder.layers.0": [0.5, 0.5]})
    (axes,) = plots.sources_figure([run]).axes
    assert bars(axes) == {
        "mnli": {"all layers": 0.625, "encoder.layers.0": 0.75, "decoder.layers.0": 0.5},
        "qnli": {"all layers": 0.375, "encoder.layers.0": 0.25, "decoder.layers.0": 0.5},
    }
    assert axes.get_title("right") == "rte, update 1,200"
    tops = [bar.get_y() + bar.get_height() for bar in axes.containers[1]]
    assert tops == [1.0, 1.0, 1.0]
    assert {bar.get_hatch() for container in axes.containers for bar in container} == {"", "///"}


def test_sources_of_several_runs_have_their_means_beside_each_other():
    runs = [
        borrowing("one", {"encoder.layers.0": [0.75, 0.25], "encoder.layers.1": [math.nan, math.nan]}),
        borrowing("two", {"encoder.layers.0": [1.0]}, sources=["squad"], target="boolq"),
    ]
    means, one, two = plots.sources_figure(runs).axes
    assert bars(means) == {
        "mnli": {"one": 0.75, "two": 0.0}, "qnli": {"one": 0.25, "two": 0.0}, "squad": {"one": 0.0, "two": 1.0},
    }  # fmt: skip
    assert bars(one)["mnli"] == {"all layers": 0.75, "encoder.layers.0": 0.75, "encoder.layers.1": 0.0}
    assert [axes.get_title("left") for axes in (means, one, two)] == ["", "one", "two"]


def test_the_map_is_of_the_first_two_principal_components():
    """Beside scikit-learn's, whose axes may point the other way."""
    from sklearn.decomposition import PCA

    table_KD = np.random.default_rng(5).normal(size=(6, 9)).astype(np.float32)
    places, shares = TaskEmbeddingTable(list("abcdef"), table_KD).plane()
    expected = PCA(2).fit(table_KD.astype(np.float64))
    np.testing.assert_allclose(np.abs(places), np.abs(expected.transform(table_KD)), atol=1e-6)
    np.testing.assert_allclose(shares, expected.explained_variance_ratio_, atol=1e-6)
    assert all(places[np.abs(places[:, axis]).argmax(), axis] > 0 for axis in range(2))


@pytest.mark.parametrize("table_KD", [np.zeros((3, 4)), np.ones((1, 4)), np.eye(2, 4)])
def test_few_or_equal_embeddings_have_a_map_too(table_KD):
    table = TaskEmbeddingTable([f"t{number}" for number in range(len(table_KD))], table_KD)
    places, shares = table.plane()
    assert np.isfinite(places).all() and places.shape == (len(table_KD), 2) and sum(shares) <= 1 + 1e-9
    figure = plots.embeddings_figure({"run": table})
    figure.canvas.draw()
    assert [text.get_text() for text in figure.axes[0].texts] == table.tasks
