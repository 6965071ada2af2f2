"""Which examples an epoch consists of: pure functions of data sizes, schedule, seed, epoch and what a run has saved.

Setting an epoch up costs time in proportion to the epoch, not to the data, and needs no earlier epoch. Numpy only.
"""
