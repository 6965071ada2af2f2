import pytest

from tests.helpers.states import trained, write_in_parts


@pytest.fixture(scope="session")
def checkpoint():
    """The state of 4 experts and its parameters; not to be changed."""
    return trained(4)


@pytest.fixture
def parts(checkpoint, tmp_path):
    path = tmp_path / "checkpoint_last.pt"
    write_in_parts(path, *checkpoint, processes=2)
    return path
