"""Small files in the forms in which the benchmarks' authors distribute theirs."""

import json

import pytest


@pytest.fixture
def write(tmp_path):
    """Write a file below the data directory, `tmp_path`: a text, bytes, or records as lines of JSON."""

    def write_file(name, content):
        if isinstance(content, list):
            content = "".join(json.dumps(record) + "\n" for record in content)
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file
