"""Where the kill test kills: a table of the phases of a run, and moments in them."""

from dataclasses import dataclass, replace

UPDATES = 60
DENSE_UPDATES = 32  # the model becomes sparse at a save, in the middle of the second epoch


@dataclass(frozen=True)
class Moment:
    """A call of a function in a run."""

    function: str  # module and name, as in `os:replace`
    argument: str = ""  # only calls with this text among their arguments count
    when: str = "before"  # or `after` the call, or `inside`: in the middle of the file that it writes
    call: int = 2  # which of these calls, from 1


@dataclass(frozen=True)
class Case:
    """A run that is killed once or several times, each time started again, and at last left to end."""

    phase: str
    moments: tuple[Moment, ...]  # one for each start that is killed
    processes: int = 1  # of the first start
    resumed_by: int = 1  # processes of the others
    victim: int = 0  # the rank of the process that is killed
    data: str = "translation"  # or a `benchmark`, or of PEMT a `source` or a `target` on an encoder


_TASK = "fairseq_mtmoe.multitask.task:Multitask."  # which every task's own methods call
_STATE = "fairseq_mtmoe.checkpoints.optimizer_state:OptimizerState.restore"

WRITE = Moment("torch:save", when="inside")
RENAME = Moment("os:replace", "checkpoint_")
COPY_LAST = Moment("shutil:copyfileobj", "checkpoint_last", "inside")
UPDATE = Moment(f"{_TASK}train_step", call=21)
BACKWARD = Moment("fairseq.optim.fairseq_optimizer:FairseqOptimizer.backward", "", "after", 41)
ADAM = Moment("fairseq_mtmoe.training.fused_adam:FusedAdam.step", "", "after", 27)
VALIDATE = Moment(f"{_TASK}valid_step")
SPARSIFY = Moment("fairseq_mtmoe.training.sparsify.in_training:sparsify_with_state", call=1)
SPARSE_MODEL = Moment(_STATE, call=1)  # the model is sparse, its optimizer still the dense one's
SPARSE = Moment(_STATE, when="after", call=1)
READ = Moment("torch:load", call=1)
LOADED = Moment("fairseq.checkpoint_utils:load_checkpoint", when="after", call=1)
FINISHED = Moment("fairseq_cli.train:validate_and_save", when="after", call=UPDATES)  # all is saved, nothing left to do
LEAVE = Moment("os:replace", "wic.pt", call=1)  # a source's file, which comes before its checkpoint

ONE_PROCESS = (
    Case("a save", (WRITE,)),
    Case("a save", (Moment("os:fsync", call=7),)),
    Case("a save", (RENAME,)),
    Case("a save", (replace(RENAME, when="after"),)),
    Case("the copy to checkpoint_last", (COPY_LAST,)),
    Case("the copy to checkpoint_best", (Moment("os:replace", "checkpoint_best", call=1),)),
    Case("an epoch", (UPDATE,)),
    Case("an epoch", (BACKWARD,)),
    Case("an epoch", (ADAM,)),
    Case("an epoch, twice", (UPDATE, replace(BACKWARD, call=3))),
    Case("a validation", (VALIDATE,)),
    Case("sparsification", (Moment("os:replace", f"_{DENSE_UPDATES}.pt", call=1),)),
    Case("sparsification", (SPARSIFY,)),
    Case("sparsification", (SPARSE_MODEL,)),
    Case("sparsification, twice", (SPARSE, replace(ADAM, call=1))),
    Case("between epochs", (Moment(f"{_TASK}begin_epoch", call=2),)),
    Case("between epochs", (Moment(f"{_TASK}_training_iterator", when="after", call=2),)),
    Case("start-up, and the end", (Moment(f"{_TASK}build_model", call=1), FINISHED)),
    Case("loading, after a save", (replace(WRITE, call=3), READ, replace(READ, when="after"), LOADED)),
)
TWO_PROCESSES = (
    Case("a save", (WRITE,), 2, 2),
    Case("a save", (RENAME,), 2, 1),
    Case("the copy to checkpoint_last", (COPY_LAST,), 2, 2),
    Case("an epoch", (BACKWARD,), 2, 2, victim=1),
    Case("an epoch", (UPDATE,), 2, 1, victim=1),
    Case("a validation", (VALIDATE,), 2, 2, victim=1),
    Case("sparsification", (SPARSIFY,), 2, 2, victim=1),
    Case("sparsification", (replace(ADAM, call=DENSE_UPDATES + 1),), 2, 1),
    Case("loading, after an epoch", (ADAM, LOADED), 2, 2, victim=1),
)
OF_TASKS = (
    Case("a save, of tasks", (WRITE,), data="benchmark"),
    Case("an epoch, of tasks", (BACKWARD,), data="benchmark"),
    Case("sparsification, of tasks", (SPARSE_MODEL,), data="benchmark"),
    Case("an epoch, of tasks", (UPDATE,), 2, 2, victim=1, data="benchmark"),
    Case("a save, of tasks", (RENAME,), 2, 1, data="benchmark"),
)
OF_BORROWING = (
    Case("a save, of a source", (LEAVE,), data="source"),
    Case("a save, of a source", (WRITE,), data="source"),
    Case("an epoch, of a target", (BACKWARD,), data="target"),
    Case("a save, of a target", (RENAME,), data="target"),
)
ALL = (*ONE_PROCESS, *TWO_PROCESSES, *OF_TASKS, *OF_BORROWING)
