"""Which checkpoints a run keeps."""

import pytest

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.rewriting import UPDATES, newest
from tests.helpers.commands import training_arguments
from tests.helpers.scheduled import rarely
from tests.helpers.training import run_here

SHORT = ("--virtual-epoch-size", 150, "--max-tokens", 400, "--disable-validation")
KEPT = {
    "epochs": (),
    "the last epoch": ("--keep-last-epochs", 1),
    "every second epoch": ("--save-interval", 2),
    "updates alone": ("--no-epoch-checkpoints", "--no-last-checkpoints", "--checkpoint-suffix", "_x"),
}


@pytest.mark.parametrize("name", rarely(KEPT, "every second epoch"))
def test_the_last_updates_checkpoints_are_kept_also_at_an_epochs_end(name, corpus, tmp_path):
    options = ("--save-interval-updates", 1, "--keep-interval-updates", 3, "--max-epoch", 2, *KEPT[name])
    arguments = training_arguments(corpus, tmp_path, *SHORT)
    made = len(run_here([*(each for each in arguments if each != "--no-epoch-checkpoints"), *options])["losses"])
    suffix = "_x" if "_x" in options else ""
    files = {path.name for path in tmp_path.glob("*.pt")}
    updates = {f"checkpoint_2_{update}{suffix}.pt" for update in range(made - 2, made + 1)}
    epochs = {"epochs": {"checkpoint1.pt", "checkpoint2.pt"}, "every second epoch": {"checkpoint2.pt"}}
    epochs["the last epoch"] = epochs["every second epoch"]
    last = set() if suffix else {"checkpoint_last.pt"}
    assert files == updates | epochs.get(name, set()) | last
    latest = newest(tmp_path, UPDATES, 2, None, suffix)
    assert [path.name for path in latest] == [f"checkpoint_2_{update}{suffix}.pt" for update in (made, made - 1)]
    state = file_io.load(str(latest[0]))
    assert state["optimizer_history"][-1]["num_updates"] == made
    assert state["extra_state"]["train_iterator"]["epoch"] == 3
