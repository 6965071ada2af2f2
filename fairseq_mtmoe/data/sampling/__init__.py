"""Which examples an epoch consists of: pure functions of the data's sizes, the schedule, the seed and the epoch.

Where these change in a run, also of what its checkpoint has saved. A share of the data is drawn before, once for all
(`stratified_share`).

Candidates, of which the model chooses what it trains on, are drawn and chosen by `candidates`.
Temperature sampling and heating are equations 1 and 2 of "Tricks for Training Sparse Translation Models". Setting an
epoch up costs time in proportion to the epoch, not to the data, and any epoch can be set up without the ones before it
having been drawn: a resumed run continues with the same examples. Numpy only.
"""

from fairseq_mtmoe.data.sampling.apportion import apportion
from fairseq_mtmoe.data.sampling.batches import batch_ends
from fairseq_mtmoe.data.sampling.candidates import Ranks, most_uncertain, ranked
from fairseq_mtmoe.data.sampling.draw import Draw, Numbering, stratified_share
from fairseq_mtmoe.data.sampling.order import Order, Runs, order_by_length
from fairseq_mtmoe.data.sampling.permutation import derive_key
from fairseq_mtmoe.data.sampling.plan import Part, SamplingPlan
from fairseq_mtmoe.data.sampling.rules import Rules
from fairseq_mtmoe.data.sampling.saved_plans import changes, options_of, restored_plan, restored_plan_0_1_0, saved_plan
from fairseq_mtmoe.data.sampling.schedule import METHODS, Schedule, heated_temperature, temperature_probabilities

__all__ = [
    "METHODS",
    "Draw",
    "Numbering",
    "Order",
    "Part",
    "Ranks",
    "Rules",
    "Runs",
    "SamplingPlan",
    "Schedule",
    "apportion",
    "batch_ends",
    "changes",
    "derive_key",
    "heated_temperature",
    "most_uncertain",
    "options_of",
    "order_by_length",
    "ranked",
    "restored_plan",
    "restored_plan_0_1_0",
    "saved_plan",
    "stratified_share",
    "temperature_probabilities",
]
