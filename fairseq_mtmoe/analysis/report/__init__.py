"""The page of `mtmoe report`: what runs did, as one HTML file that opens from the disk without a network.

`gathering.py` reads runs and their scores, `warnings.py` has the rules, `page.py` makes HTML of a list of charts and
tables. What a log or a translation holds is text in it, and nothing else.
"""
