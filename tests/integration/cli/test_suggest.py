"""What `mtmoe suggest` prints for a data directory: sizes, updates, and a command that trains."""

import os
import re
import shlex
import shutil
import subprocess

import pytest

from fairseq_mtmoe.cli import suggest
from fairseq_mtmoe.cli._sizes import SIZES, Trial, least_hours, plan
from fairseq_mtmoe.cli.suggest import data_options, listed_pairs, measured, model_options, sizes_of
from fairseq_mtmoe.report import run_log
from tests.helpers.commands import BIN, ENVIRONMENT, REPOSITORY
from tests.helpers.invoked import invoked
from tests.helpers.refused import refused

TRIAL = Trial(seconds=2.0, sentences=100.0, memory=1.0)


def words_of(options):
    return shlex.split(" ".join(words for _, words in options))


def test_without_hours_the_passes_decide_and_with_few_the_hours():
    size = SIZES[1]  # 30 passes
    free = plan(size, TRIAL, 40_000, 1000, None)
    assert (free.updates, free.passes, free.epoch, free.every) == (12_000, 30, 40_000, 3)
    # A validation of 1,000 pairs takes 10 updates' time, half for the forward pass, half to translate: 20 s, ten times.
    assert free.hours == pytest.approx((12_000 * 2 + 200) / 3600)
    assert plan(size, TRIAL, 40_000, 1000, 100.0) == free
    short = plan(size, TRIAL, 40_000, 1000, 1.0)
    assert short.updates == (3600 - 200) // 2 and short.hours == pytest.approx(1, abs=1e-3) and short.is_scored
    shorter = plan(size, TRIAL, 40_000, 1000, 0.1)  # translations would take more than a fifth of it
    assert shorter.updates == (360 - 100) // 2 and not shorter.is_scored
    assert plan(size, TRIAL, 40_000, 1000, 1e-6).updates == 10


@pytest.fixture
def tried(monkeypatch):
    """The widths and minutes of pretended trials."""
    trials = []

    def run_trial(data, options, minutes):
        words = words_of(options)
        trials.append((int(words[words.index("--encoder-embed-dim") + 1]), minutes))
        return TRIAL

    monkeypatch.setattr(suggest, "run_trial", run_trial)
    monkeypatch.setattr(suggest, "sizes_of", lambda data, split, pairs: {"en-aa": 300_000 if split == "train" else 500})
    return trials


def test_all_trials_share_three_minutes_and_the_best_by_chrf_is_kept(many_digits, tried):
    invoked("suggest", many_digits, "--hours", 1)
    widths, minutes = zip(*tried, strict=True)
    assert widths == (256, 192, 128) and minutes == pytest.approx((1, 1, 1))
    tried.clear()
    script = invoked("suggest", many_digits).stdout
    assert tried == [(256, pytest.approx(3))]
    chosen = "--eval-chrf", "--best-checkpoint-metric chrf --maximize-best-checkpoint-metric", "--patience 3"
    assert all(options in script for options in chosen)
    assert "--eval-chrf" not in invoked("suggest", many_digits, "--hours", 0.01).stdout


def test_the_screen_says_which_hours_are_enough(many_digits, tried):
    shown = invoked("suggest", many_digits, "--hours", 1)
    (enough,) = re.findall(r"^--hours 1 is short: .* --hours (\S+) is enough for 5 passes", shown.stderr, re.MULTILINE)
    assert float(enough) == least_hours(TRIAL, 300_000, 500)
    assert "# --hours 1 is short" in shown.stdout and "--patience" not in shown.stdout
    assert re.search(r"^Length: \S+ of 40 recommended passes over the data\.$", shown.stderr, re.MULTILINE)
    assert re.search(r"# \S+ of 40 recommended passes over the data\.\n +--max-update", shown.stdout)
    assert "is short" not in invoked("suggest", many_digits, "--hours", enough).output


def test_a_model_too_slow_for_two_updates_gives_way_to_a_smaller_one(many_digits, tried, monkeypatch):
    def run_trial(data, options, minutes):
        return None if "--encoder-embed-dim 256" in str(options) else TRIAL

    monkeypatch.setattr(suggest, "run_trial", run_trial)
    with refused("DATA"):
        invoked("suggest", many_digits)
    assert "--encoder-embed-dim 192" in invoked("suggest", many_digits, "--hours", 100).stdout


def test_the_first_updates_of_a_trial_do_not_count():
    events = [
        {"update": update, "minutes": 10 + update / 30 if update > 6 else update, "bsz": 90.0 if update > 6 else 1.0,
         "gb_free": 40.0 - update}
        for update in range(1, 31)
    ]  # fmt: skip
    trial = measured(events, 2.5)
    assert (trial.sentences, trial.memory, trial.gpu_left) == (90, 2.5, 10)
    assert trial.seconds == pytest.approx(60 * (11 - 6) / 24)


def test_several_target_languages_get_experts(many_digits):
    def experts(pairs):
        words = words_of(model_options(str(many_digits), SIZES[0], dict.fromkeys(pairs, 1)))
        return words[: words.index("--encoder-layers")]

    sizes = sizes_of(str(many_digits), "train", None)
    targets = {pair.split("-")[1] for pair in sizes}
    assert experts(sizes) == ["--arch", "base_moe", "--num-experts", str(len(targets)), "--expert-gates", "fixed"]
    many = ["--arch", "base_moe", "--num-experts", "8", "--expert-gates", "task"]
    assert experts([f"en-{lang}" for lang in "abcdefghi"]) == many
    assert experts([next(iter(sizes))]) == ["--arch", "base_dense"]


def test_shards_count_together_and_pairs_are_asked_for_in_either_direction(many_digits, tmp_path):
    data, pair = tmp_path / "data", "en-aa"
    for shard in ("shard0", "shard1"):
        shutil.copytree(many_digits, data / shard)
    (data / "lang_pairs.txt").write_text("en-aa\naa-en\n")
    alone = {split: sizes_of(str(many_digits), split, pair)[pair] for split in ("train", "valid")}
    both = listed_pairs(str(data))
    assert sizes_of(str(data), "train", both) == {pair: 2 * alone["train"], "aa-en": 2 * alone["train"]}
    assert sizes_of(str(data), "valid", both) == {pair: alone["valid"], "aa-en": alone["valid"]}
    words = words_of(data_options(str(data), SIZES[0], {"aa-en": 1}, "aa-en", True))
    assert words[words.index("--lang-pairs") + 1] == "aa-en"


def test_what_is_no_data_is_refused_and_a_trial_that_fails_says_why(many_digits, tmp_path):
    for data, name in ((tmp_path / "none", "none"), (tmp_path, tmp_path.name), (many_digits, "--lang-pairs")):
        with refused(name):
            invoked("suggest", data, *(("--lang-pairs", "en-xx") if data == many_digits else ()))
    (tmp_path / "data").mkdir()
    for path in many_digits.iterdir():
        if path.is_file() and not path.name.startswith("dict."):
            os.link(path, tmp_path / "data" / path.name)
    with refused("DATA", first=False) as caught:
        invoked("suggest", tmp_path / "data", "--cpu")
    assert "dict" in str(caught.value)


def test_the_printed_command_trains(many_digits, tmp_path):
    told = invoked("suggest", many_digits, "--cpu", "--hours", "0.001", "--save-dir", tmp_path / "run").stdout
    (tmp_path / "train.sh").write_text(told)
    environment = {**ENVIRONMENT, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY)}
    del environment["PYTHONWARNINGS"]  # the script sets it
    done = subprocess.run(
        ["bash", tmp_path / "train.sh"], cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "FutureWarning" not in done.stderr
    assert (tmp_path / "run" / "checkpoint_last.pt").is_file()
    assert "# Estimate: 10 updates in" in told
    validated = [event for event in run_log.read(tmp_path / "run" / "mtmoe.jsonl") if event["event"] == "valid"]
    kept = sorted(path.name for path in (tmp_path / "run").iterdir() if re.fullmatch(r"checkpoint\d+\.pt", path.name))
    # Epochs of so few sentences have more batches than counted, and end later.
    assert 3 <= len(validated) <= 10 and len(kept) in (len(validated) - 1, len(validated), 5)
