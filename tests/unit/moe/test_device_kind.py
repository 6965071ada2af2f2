"""The device is asked for in one place, and forms can be chosen for a test."""

import re
from pathlib import Path

import torch

import fairseq_mtmoe.moe
from fairseq_mtmoe.moe.device_kind import DeviceKind, device_kind, device_kind_everywhere, is_on_cpu, is_on_gpu

ASKING = re.compile(r"is_cuda|device\.type\s*(==|!=|in\b|not in\b)|cuda\.is_available|get_device_capability")


def test_nobody_else_asks_where_a_tensor_is():
    folder = Path(fairseq_mtmoe.moe.__file__).parent
    asking = [file.name for file in folder.rglob("*.py") if ASKING.search(file.read_text(encoding="utf-8"))]
    assert asking == ["device_kind.py"]


def test_a_form_can_be_chosen_but_not_where_a_tensor_is():
    tensor = torch.zeros(1)
    assert device_kind(tensor) is DeviceKind.CPU and device_kind(tensor).can_sync
    with device_kind_everywhere(DeviceKind.GPU):
        assert device_kind(tensor) is DeviceKind.GPU and not device_kind(tensor).can_sync
        assert is_on_cpu(tensor) and not is_on_gpu(tensor)
    assert device_kind(tensor) is DeviceKind.CPU
