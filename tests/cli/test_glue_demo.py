"""`make demo-glue` at a reduced size: its own tasks, and the commands of its script, with a tiny encoder."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_mtmoe.errors import UserError
from tests.helpers.benchmark import make_encoder
from tests.helpers.commands import REPOSITORY, run

DEMO = REPOSITORY / "examples/glue/demo"
sys.path.insert(0, str(DEMO))

import docstrings  # noqa: E402
import make_tasks  # noqa: E402

sys.path.remove(str(DEMO))

SHIM = f"""#!{sys.executable}
import json, os, sys
print(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]), file=open(os.environ["CALLS"], "a"))
"""
