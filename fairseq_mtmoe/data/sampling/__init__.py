"""Which sentences an epoch consists of: pure functions of the data's sizes, the schedule, the seed and the epoch.

Temperature sampling and heating are equations 1 and 2 of "Tricks for Training Sparse Translation Models". Setting an
epoch up costs time in proportion to the epoch, not to the data, and any epoch can be set up without the ones before it
having been drawn: a resumed run continues with the same sentences. Numpy only.
"""

from fairseq_mtmoe.data.sampling.apportion import apportion
from fairseq_mtmoe.data.sampling.permutation import permuted
from fairseq_mtmoe.data.sampling.plan import Draw, SamplingPlan
from fairseq_mtmoe.data.sampling.schedule import METHODS, Schedule
from fairseq_mtmoe.data.sampling.temperature import heated_temperature, temperature_probabilities

__all__ = [
    "METHODS",
    "Draw",
    "SamplingPlan",
    "Schedule",
    "apportion",
    "heated_temperature",
    "permuted",
    "temperature_probabilities",
]
