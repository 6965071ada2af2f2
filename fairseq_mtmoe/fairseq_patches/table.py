"""The table of what is replaced, in the order in which it is; each replacement stands where its reason does."""

from __future__ import annotations

from fairseq_mtmoe.checkpoints import loading
from fairseq_mtmoe.data import fairseq_readers
from fairseq_mtmoe.fairseq_patches import commands
from fairseq_mtmoe.fairseq_patches.patch import Patch, instead
from fairseq_mtmoe.training import failures, launch, metrics_hook, saving, screen, stopping

PATCHES = (
    # ---- the interpreter ----
    Patch(
        "sys.excepthook",
        (failures.showing_sentences,),
        "A user's error is one sentence; a process that leaves in order can wait for the others for ever.",
    ),
    # ---- checkpoints ----
    Patch(
        "fairseq.checkpoint_utils.load_checkpoint_to_cpu",
        (instead(loading.load_checkpoint_to_cpu),),
        "Files are checked before they are read, nothing in them is executed, and experts may be in other files.",
        "(path, arg_overrides=None, load_on_all_ranks=False)",
    ),
    Patch(
        "fairseq.checkpoint_utils.load_model_ensemble_and_task",
        (loading.whole_models_of_files,),
        "A file builds no model that is not known to be safe or larger than its weights; what differs is a sentence.",
        "(filenames, arg_overrides=None, task=None, strict=True, suffix='', num_shards=1, state=None)",
    ),
    Patch(
        "fairseq.checkpoint_utils.save_checkpoint",
        (instead(saving.save_checkpoint),),
        "Where experts are in several processes all of them write; a copy is whole, with its experts, or absent.",
        "(cfg, trainer, epoch_itr, val_loss)",
    ),
    # ---- data ----
    Patch(
        "fairseq.data.Dictionary.add_from_file",
        (fairseq_readers.with_sentences,),
        "What is wrong with a dictionary is a sentence, with the line; fairseq's own tasks read it, too.",
        "(self, f)",
    ),
    Patch(
        "fairseq.data.encoders.sentencepiece_bpe.SentencepieceBPE.__init__",
        (fairseq_readers.checking_the_model,),
        "What is wrong with a SentencePiece model is a sentence; fairseq's own tasks load it, too.",
        "(self, cfg)",
    ),
    Patch(
        "fairseq_cli.interactive.buffered_read",
        (instead(fairseq_readers.read_lines),),
        "Lines end at line feeds alone, and what is no UTF-8 is a sentence, with the line.",
        "(input, buffer_size)",
    ),
    # ---- how processes start, meet and compute ----
    Patch(
        "fairseq.distributed.utils.call_main",
        (launch.resolving, launch.correcting_tpu, screen.with_screen, stopping.watching),
        "`--bf16` is no TPU; processes start on CPUs too, and as ours; the log's format; signals end runs in order.",
        "(cfg, main, **kwargs)",
    ),
    Patch(
        "fairseq.distributed.utils.all_gather_list",
        (metrics_hook.of_any_size,),
        "fairseq sends by way of GPUs what processes on CPUs tell each other, in validation without a trainer, too.",
        "(data, group=None, max_size=16384)",
    ),
    # ---- commands and the trainer ----
    Patch(
        "fairseq.options.parse_args_and_arch",
        (commands.with_whole_help, commands.with_task_of_checkpoint),
        "fairseq prints its help before it adds the options of the chosen task, model, criterion and optimizer; "
        "`fairseq-validate` without `--task` ends in `KeyError: None`.",
        "(parser, input_args=None, ...)",
    ),
    Patch(
        "fairseq.dataclass.constants.LOG_FORMAT_CHOICES",
        (commands.with_choice,),
        "`--log-format rich` is a choice.",
    ),
    Patch(
        "fairseq.logging.progress_bar.progress_bar",
        (commands.with_rich, metrics_hook.telling),
        "`--log-format rich` has a progress bar of its own; the run log gets the figures that progress bars get.",
        "(iterator, log_format=None, log_interval=100, log_file=None, ...)",
    ),
    Patch(
        "fairseq_cli.train.validate_and_save",
        (stopping.after_updates,),
        "An update that was left out is not validated and saved again; a signal saves and ends.",
        "(cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch)",
    ),
    Patch(
        "fairseq_cli.train.get_training_stats",
        (metrics_hook.without_unknown,),
        "A figure that no batch since the last line had, such as the loss of one of several tasks, is shown as None.",
        "(stats)",
    ),
    Patch(
        "fairseq_cli.train.train",
        (stopping.saving_on_signals,),
        "From the first update on a signal waits for its end, and the log has the options and the model.",
        "(cfg, trainer, task, epoch_itr)",
    ),
    Patch(
        "fairseq.trainer.Trainer.__new__",
        (commands.choosing_ours,),
        "fairseq's training command names its trainer, of which `SparseTrainer` is a subclass.",
        "(self, cfg, task, model, criterion, quantizer=None)",
        signature_of="fairseq.trainer.Trainer.__init__",
    ),
)


def apply() -> None:
    """Put everything in place. Safe to call any number of times; a command's functions only once it is loaded.

    Raises:
        UserError: a function has another signature in the installed fairseq than the one that is replaced.
    """
    for patch in PATCHES:
        patch.apply()
