"""What the server has done that forks tests' processes (processes.py): imported all they need, and frozen it."""

import gc

import fairseq_cli.train  # noqa: F401  (before the plugin, which is then registered)
import pytest  # noqa: F401
import torch._dynamo  # noqa: F401  (which torch imports at the first optimizer, in seconds)

import fairseq_mtmoe.training.trainer  # noqa: F401
from tests.helpers.training import configured

configured(["data", "--arch", "base_moe_tiny"])  # hydra's plugins and its grammar take half of the first one's time
gc.freeze()  # what is there is neither searched nor taken down by each of the processes
