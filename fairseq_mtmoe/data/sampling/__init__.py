"""Which examples an epoch consists of: pure functions of the data's sizes, the schedule, the seed and the epoch.

Where options change in a run, also of what its checkpoint has saved. A share of the data is drawn before, once for all
(`draw.stratified_share`). Candidates, of which the model chooses what it trains on, are drawn and chosen by
`candidates`.

Setting an epoch up costs time in proportion to the epoch, not to the data, and any epoch can be set up without the ones
before it having been drawn: a resumed run continues with the same examples. Numpy only.
"""
