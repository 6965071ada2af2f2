"""What catalogs hold, harvested within the test's process."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from fairseq_mtmoe.data.corpora.catalogs import Catalog
from fairseq_mtmoe.data.corpora.engine.progress import shown
from fairseq_mtmoe.data.corpora.harvest import Harvest, read_catalogs
from tests.helpers.raw_corpora import Counting


def harvest(catalogs: Sequence[Catalog]) -> Harvest:
    """All that catalogs hold, cleaned."""
    with tempfile.TemporaryDirectory() as folder, shown(Path(folder) / "log.txt") as progress:
        return read_catalogs(catalogs, Counting(), progress)
