"""Sampling: the examples of an epoch.

They are pure functions of data sizes, schedule, seed, epoch and saved state.
Drawing an epoch costs time in proportion to the epoch, not to the data, and needs no earlier
epoch. Numpy only.
"""
