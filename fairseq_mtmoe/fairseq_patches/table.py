"""The table of what is replaced, in the order in which it is; each replacement stands where its reason does."""

from __future__ import annotations

from fairseq_mtmoe.checkpoints import building, file_io, loading, mismatch
from fairseq_mtmoe.data import fairseq_readers
from fairseq_mtmoe.fairseq_patches import bfloat16, cpu_processes, excepthook, help_text, rich_format, trainer_class
from fairseq_mtmoe.fairseq_patches.patch import COMMANDS, Patch, instead
from fairseq_mtmoe.training import (
    full_sharding,
    joining,
    loop,
    resuming,
    saving,
    screen,
    signals,
    starting,
    zero_sharding,
)

PATCHES = (
    # ---- the interpreter ----
    Patch(
        "sys.excepthook",
        (excepthook.showing_sentences,),
        "A user's error is one sentence; a process that leaves in order can wait for the others for ever.",
    ),
    # ---- checkpoints ----
    Patch(
        "fairseq.checkpoint_utils.verify_checkpoint_directory",
        (file_io.writable_or_one_sentence,),
        "What the system says of `--save-dir` is a sentence.",
        "(save_dir)",
    ),
    Patch(
        "fairseq.checkpoint_utils.torch_persistent_save",
        (file_io.saved_whole,),
        "fairseq retries a failed write into the same file; ours is complete, with a checksum, or absent.",
        "(obj, filename, async_write=False)",
    ),
    Patch(
        "fairseq.checkpoint_utils.load_checkpoint_to_cpu",
        (instead(loading.load_checkpoint_to_cpu), mismatch.noting),
        "Files are checked before they are read, nothing in them is executed, and experts may be in other files.",
        "(path, arg_overrides=None, load_on_all_ranks=False)",
    ),
    Patch(
        "fairseq.checkpoint_utils.load_model_ensemble_and_task",
        (loading.whole_models_of_files, mismatch.explained_load),
        "A file chooses no model that is not known to be safe, and what differs is named with its option.",
        "(filenames, arg_overrides=None, task=None, strict=True, suffix='', num_shards=1, state=None)",
    ),
    Patch(
        "fairseq.checkpoint_utils.load_ema_from_checkpoint",
        (instead(loading.load_ema),),
        "As for `load_checkpoint_to_cpu`.",
        "(fpath)",
    ),
    Patch(
        "fairseq.checkpoint_utils.PathManager",
        (loading.copying_checkpoints,),
        "fairseq copies `checkpoint_best.pt` over the last good one in place, and no expert files.",
        "(src_path, dst_path, overwrite=False)",
        signature_of="fairseq.file_io.PathManager.copy",
    ),
    Patch(
        "fairseq.checkpoint_utils.load_checkpoint",
        (resuming.expecting, loop.making_up),
        "A file to go on from that is not there is no reason to begin anew; an owed validation comes first.",
        "(cfg, trainer, **passthrough_args)",
    ),
    Patch(
        "fairseq.checkpoint_utils.save_checkpoint",
        (saving.together,),
        "Where experts are in several processes all of them write; weights that are not finite are not saved.",
        "(cfg, trainer, epoch_itr, val_loss)",
    ),
    Patch(
        "fairseq.models.build_model",
        (building.sized,),
        "A file describes no larger model than the one that it holds.",
        "(cfg, task, ...)",
    ),
    Patch(
        "fairseq.models.BaseFairseqModel.load_state_dict",
        (mismatch.explaining,),
        "What differs between a model and a checkpoint is named with its option.",
        "(self, state_dict, ...)",
    ),
    # ---- data ----
    Patch(
        "fairseq.data.Dictionary.add_from_file",
        (fairseq_readers.with_sentences,),
        "What is wrong with a dictionary is a sentence, with the line.",
        "(self, f)",
    ),
    Patch(
        "fairseq.data.encoders.sentencepiece_bpe.SentencepieceBPE.__init__",
        (fairseq_readers.checking_the_model,),
        "What is wrong with a SentencePiece model is a sentence.",
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
        (bfloat16.correcting_tpu, starting.deciding, screen.with_screen, signals.watching),
        "`--bf16` is no TPU; processes start on CPUs too; the log's format; a signal ends a run after its update.",
        "(cfg, main, **kwargs)",
    ),
    Patch(
        "fairseq.distributed.utils.distributed_main",
        (instead(joining.distributed_main),),
        "A process that torch started has loaded no plugin; the first error in one of them ends all.",
        "(i, main, cfg, kwargs)",
    ),
    Patch(
        "fairseq.distributed.utils.distributed_init",
        (instead(joining.distributed_init),),
        "Processes compare their options when they meet, and wait no half an hour for one that does not come.",
        "(cfg)",
    ),
    Patch(
        "fairseq.distributed.utils.all_gather_list",
        (cpu_processes.from_cpus,),
        "fairseq sends by way of GPUs what processes on CPUs tell each other.",
        "(data, group=None, max_size=16384)",
    ),
    Patch(
        "fairseq.models.distributed_fairseq_model.DistributedDataParallel",
        (instead(cpu_processes.data_parallel),),
        "fairseq names a GPU for modules on the CPU, which torch refuses.",
        "(module, device_ids=None, output_device=None, ...)",
    ),
    Patch(
        "fairseq.utils.clip_grad_norm_",
        (cpu_processes.beside_gpus,),
        "With `--cpu` on a machine with a GPU the norm of all gradients goes to the GPU, and they do not.",
        "(params, max_norm, aggregate_norm_fn=None)",
    ),
    Patch(
        "fairseq.distributed.fully_sharded_data_parallel.FullyShardedDataParallel",
        (instead(full_sharding.CheckedFullSharding),),
        "fairscale's wrapper takes each process's experts for those of all, and needs CUDA.",
    ),
    Patch(
        "fairseq.optim.shard_",
        (instead(zero_sharding.shard),),
        "fairscale gives one process's experts to another one.",
        "(optimizer, group)",
    ),
    # ---- commands and the trainer ----
    Patch(
        "fairseq.options.parse_args_and_arch",
        (help_text.with_whole_help,),
        "fairseq prints its help before it adds the options of the chosen task, model, criterion and optimizer.",
        "(parser, input_args=None, ...)",
    ),
    Patch(
        "fairseq.dataclass.constants.LOG_FORMAT_CHOICES",
        (rich_format.with_choice,),
        "`--log-format rich` is a choice.",
    ),
    Patch(
        "fairseq.logging.progress_bar.progress_bar",
        (rich_format.with_rich,),
        "`--log-format rich` has a progress bar of its own.",
        "(iterator, log_format=None, log_interval=100, log_file=None, ...)",
    ),
    Patch(
        "fairseq_cli.train.validate_and_save",
        (loop.after_updates,),
        "An update that was left out is not validated and saved again; a signal saves and ends.",
        "(cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch)",
    ),
    Patch(
        "fairseq_cli.train.train",
        (loop.saving_on_signals,),
        "From the first update on a signal waits for its end.",
        "(cfg, trainer, task, epoch_itr)",
    ),
    Patch(
        "fairseq.trainer.Trainer.__new__",
        (trainer_class.choosing_ours,),
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


def apply_to_commands() -> None:
    """As `apply`, for what a command that was loaded since then has."""
    for patch in PATCHES:
        if patch.target.startswith(COMMANDS):
            patch.apply()
