"""The table of all patches, in the order of application, each with its reason."""

from fairseq_mtmoe.checkpoints import loading
from fairseq_mtmoe.training import failures, fairseq_readers, launch, metrics, saving, stopping
from fairseq_mtmoe.training.fairseq import commands
from fairseq_mtmoe.training.fairseq.commands import with_our_trainer
from fairseq_mtmoe.training.fairseq.patch import Patch, instead

PATCHES = (
    # ---- the interpreter ----
    Patch(
        "sys.excepthook",
        failures.showing_sentences,
        "A user's error is one sentence; a process that exits in order could wait for the others "
        "forever.",
    ),
    # ---- checkpoints ----
    Patch(
        "fairseq.checkpoint_utils.load_checkpoint_to_cpu",
        instead(loading.load_checkpoint_to_cpu),
        "Files are checked before they are read, none of their code is executed, and experts may "
        "be in other files.",
        "(path, arg_overrides=None, load_on_all_ranks=False)",
    ),
    Patch(
        "fairseq.checkpoint_utils.load_model_ensemble_and_task",
        loading.whole_models_of_files,
        "A file builds only models that are known to be safe; a mismatch is one sentence.",
        "(filenames, arg_overrides=None, task=None, strict=True, suffix='', num_shards=1, "
        "state=None)",
    ),
    Patch(
        "fairseq.checkpoint_utils.save_checkpoint",
        with_our_trainer(saving.saving_together),
        "All ranks with experts write; weights that are not finite are not saved.",
        "(cfg, trainer, epoch_itr, val_loss)",
    ),
    Patch(
        "fairseq.file_io.PathManager.copy",
        saving.copying_experts,
        "A checkpoint's copies under other names are complete, with their experts, or absent.",
        "(src_path, dst_path, overwrite=False)",
    ),
    # ---- data ----
    Patch(
        "fairseq.data.Dictionary.add_from_file",
        fairseq_readers.with_sentences,
        "An error in a dictionary is a sentence that names the line; fairseq's own tasks read "
        "it, too.",
        "(self, f)",
    ),
    Patch(
        "fairseq.data.encoders.sentencepiece_bpe.SentencepieceBPE.__init__",
        fairseq_readers.checking_the_model,
        "An error in a SentencePiece model is one sentence; fairseq's own tasks load it, too.",
        "(self, cfg)",
    ),
    Patch(
        "fairseq_cli.interactive.buffered_read",
        instead(fairseq_readers.read_lines),
        "Lines end at line feeds alone, and invalid UTF-8 is a sentence that names the line.",
        "(input, buffer_size)",
    ),
    # ---- start and communication of processes ----
    Patch(
        "fairseq.distributed.utils.call_main",
        launch.starting,
        "`--bf16` does not mean a TPU; processes start on CPUs, too; they log alike, and signals "
        "end runs in order.",
        "(cfg, main, **kwargs)",
    ),
    Patch(
        "fairseq.distributed.utils.all_gather_list",
        instead(metrics.all_gather_list),
        "fairseq sends messages between processes on CPUs through GPUs, also in validation "
        "without a trainer.",
        "(data, group=None, max_size=16384)",
    ),
    # ---- commands and the trainer ----
    Patch(
        "fairseq.options.parse_args_and_arch",
        commands.with_chosen_options,
        "fairseq prints its help before it adds the options of the chosen task, model, criterion "
        "and optimizer, and `fairseq-generate` ignores `--num-shards`.",
        "(parser, input_args=None, parse_known=False, suppress_defaults=False, modify_parser=None)",
    ),
    Patch(
        "fairseq.dataclass.constants.LOG_FORMAT_CHOICES",
        commands.with_choice,
        "`--log-format rich` is a choice.",
    ),
    Patch(
        "fairseq.logging.progress_bar.progress_bar",
        commands.with_rich,
        "`--log-format rich` has its own progress bar.",
    ),
    Patch(
        "fairseq_cli.train.validate_and_save",
        with_our_trainer(stopping.after_updates),
        "A skipped update is not validated and saved again; a signal saves and ends the run.",
        "(cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch)",
    ),
    Patch(
        "fairseq_cli.train.get_training_stats",
        metrics.without_unknown,
        "fairseq shows a figure without batches since the last line, such as a task's loss, as "
        "None.",
        "(stats)",
    ),
    Patch(
        "fairseq_cli.train.train",
        with_our_trainer(stopping.saving_on_signals),
        "From the first update on, a signal waits for the update's end; data loaders end with an "
        "epoch.",
        "(cfg, trainer, task, epoch_itr)",
    ),
    Patch(
        "fairseq.trainer.Trainer.__new__",
        commands.choosing_ours,
        "fairseq's training command names its own trainer, the base class of `SparseTrainer`.",
    ),
)


def apply() -> None:
    """Apply all patches, a command's only once it is imported; idempotent."""
    for patch in PATCHES:
        patch.apply()
