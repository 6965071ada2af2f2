"""What a task of several tasks must supply."""

import pytest

from fairseq_mtmoe.tasks._multitask.task import Multitask


@pytest.mark.parametrize("missing", ["validated_tasks", "groups", "uncertainties"])
def test_a_task_that_lacks_a_part_is_refused_when_it_is_made(missing):
    parts = {"validated_tasks": [], "groups": lambda self: [], "uncertainties": None}
    assert type("Whole", (Multitask,), parts)(cfg=None).validated_tasks == []
    del parts[missing]
    with pytest.raises(TypeError, match=missing):
        type("Unfinished", (Multitask,), parts)(cfg=None)
