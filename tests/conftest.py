"""For every test: one thread, and nothing of a user's environment."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import torch

torch.set_num_threads(1)
