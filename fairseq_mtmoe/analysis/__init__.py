"""What a run did, in numbers and pictures: the run log, scores, and the figures of "Tricks for Training Sparse
Translation Models" (Dua et al., 2021). Imports no fairseq; only `charts` draws.
"""
