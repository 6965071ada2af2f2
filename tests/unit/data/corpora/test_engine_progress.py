"""What a preparation shows while it runs."""

import time

from fairseq_mtmoe.data.corpora.engine import workers


def test_a_step_that_is_one_long_call_is_shown_now_and_then(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(workers, "SECONDS_BETWEEN_LINES", 0.02)
    with workers.shown(tmp_path / "log.txt") as shown:
        with shown.step("Making the vocabulary"):
            time.sleep(0.15)
        before = capsys.readouterr().err.splitlines()
        assert 3 <= len(before) <= 9 and set(before) == {"Making the vocabulary: 0 s"}
        time.sleep(0.1)
        assert not capsys.readouterr().err  # the step has ended
    assert (tmp_path / "log.txt").read_text().count("Making the vocabulary") == len(before) + 1
