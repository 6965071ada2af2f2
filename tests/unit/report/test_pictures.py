"""Pictures name the version that drew them."""

import altair as alt
import pytest

from fairseq_mtmoe import __version__
from fairseq_mtmoe.report.charts.look import save
from tests.helpers.commands import REPOSITORY

PICTURE = REPOSITORY / "docs" / "images" / "captions" / "pairs.png"


def software(path):
    """Return the text `Software` of a PNG, which must be whole."""
    image = pytest.importorskip("PIL.Image").open(path)
    image.load()
    return image.text["Software"]


def test_a_picture_has_the_version(tmp_path):
    save(alt.Chart(alt.InlineData([{"x": 1}])).mark_point().encode(x="x:Q"), tmp_path / "chart.png")
    assert software(tmp_path / "chart.png") == f"fairseq_mtmoe {__version__}"


def test_the_picture_in_the_documentation_is_of_this_version():
    folder = PICTURE.parent
    again = f"mtmoe report {folder} --png {folder}"
    assert software(PICTURE) == f"fairseq_mtmoe {__version__}", f"draw it again: {again}"
