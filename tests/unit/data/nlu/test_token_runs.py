import numpy as np

from fairseq_mtmoe.data.nlu.token_runs import TokenRuns, ends


def test_runs_are_chosen_whole_or_in_part():
    runs = TokenRuns.of([[1, 2, 3], [], [4]]).joined(TokenRuns.of([[5, 6]]))
    assert len(runs) == 4 and runs.lengths_N.tolist() == [3, 0, 1, 2]
    assert runs.chosen(np.array([3, 0, 1, 0])).tokens_T.tolist() == [5, 6, 1, 2, 3, 1, 2, 3]
    assert runs.chosen(np.array([3, 0, 2]), np.array([1, 2, 0])).tokens_T.tolist() == [5, 1, 2]
    assert TokenRuns.of([]).chosen(np.array([], dtype=np.int64)).tokens_T.tolist() == []
    assert ends(np.array([2, 0])).tolist() == [0, 2, 2]
