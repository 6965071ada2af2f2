"""The device is asked for in one place."""

import re
from pathlib import Path

import fairseq_mtmoe.moe

ASKING = re.compile(r"is_cuda|device\.type\s*(==|!=|in\b|not in\b)|cuda\.is_available|get_device_capability")


def test_nobody_else_asks_where_a_tensor_is():
    folder = Path(fairseq_mtmoe.moe.__file__).parent
    asking = [file.name for file in folder.rglob("*.py") if ASKING.search(file.read_text(encoding="utf-8"))]
    assert asking == ["device_kind.py"]
