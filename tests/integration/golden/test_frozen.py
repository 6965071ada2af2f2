"""What 0.2.0 computed and wrote: losses of each system, and the bytes of a prepared data directory."""

import json

import pytest

from tests.golden import prepared, systems
from tests.systems.system import all_systems


@pytest.mark.parametrize("system", [pytest.param(system, id=system.name) for system in all_systems()])
def test_a_system_trains_as_in_0_2(system):
    frozen = json.loads(systems.LOSSES.read_text())[system.name]
    assert systems.losses_of(system) == pytest.approx(frozen, rel=1e-4)


def test_six_formats_are_prepared_to_the_bytes_of_0_2(tmp_path):
    assert prepared.prepared(tmp_path) == json.loads(prepared.DIGESTS.read_text())
