"""Sampling: which examples an epoch has.

The examples depend only on data sizes, schedule, seed, epoch and saved state. The time to draw an
epoch is proportional to the epoch, not to the data, and no earlier epoch is drawn. The folder needs
only numpy.
"""
