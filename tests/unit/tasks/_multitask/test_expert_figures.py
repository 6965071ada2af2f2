"""Who uses which expert, in few numbers for TensorBoard."""

from fairseq_mtmoe.tasks._multitask.run_log import expert_figures


def test_entropy_of_layers_and_tasks_and_experts_in_use():
    layers = {"a": [[5, 5, 5, 5], [8, 0, 0, 0], [0, 0, 0, 0]], "b": [[1, 1, 0, 0], [0, 0, 4, 0], [0, 0, 0, 0]]}
    assert expert_figures(layers, ["x", "y", "z"]) == {
        "expert_entropy/a": 0.5, "experts_used/a": 1.0, "expert_entropy/b": 0.25, "experts_used/b": 0.75,
        "expert_entropy/x": 0.75, "expert_entropy/y": 0.0,
    }  # fmt: skip


def test_nothing_is_said_where_nothing_was_counted():
    assert expert_figures({"a": [[0, 0], [0, 0]]}, ["x", "y"]) == {}
    assert expert_figures({}, ["x"]) == {}
