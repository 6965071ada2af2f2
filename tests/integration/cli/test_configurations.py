"""A configuration gives the same model and schedule as the command line."""

import shlex
from dataclasses import fields

import pytest
import torch
import yaml
from fairseq import options
from fairseq.dataclass.configs import FairseqConfig
from fairseq.dataclass.initialize import add_defaults, hydra_init
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf, open_dict

from fairseq_mtmoe import register
from tests.helpers.commands import PLUGIN, REPOSITORY, run
from tests.helpers.models import stub_task
from tests.helpers.training import run_here


def from_command_line(arguments):
    words = shlex.split(arguments)
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), words))


def from_configuration(name, *overrides):
    register()
    GlobalHydra.instance().clear()
    # fairseq asks for hydra's behaviour of version 1.1; what this sets holds for the whole process.
    with initialize_config_dir(str(REPOSITORY / "configs"), version_base="1.1"):
        hydra_init(name)
        cfg = compose(config_name=name, overrides=["common.user_dir=fairseq_mtmoe", *overrides])
    defaults = OmegaConf.to_container(OmegaConf.structured(FairseqConfig), resolve=False, enum_to_str=True)
    with open_dict(cfg):
        whole = OmegaConf.merge(OmegaConf.create(defaults), cfg)
    add_defaults(whole)
    return whole


GROUPS = ("task", "criterion", "optimizer", "lr_scheduler", "optimization", "dataset", "checkpoint")


def differing(command, configuration, groups):
    """The keys of these groups in which two configurations differ, with both values."""
    found = {}
    for group in groups:
        expected, given = (OmegaConf.to_container(cfg[group], resolve=True, enum_to_str=True)
                           for cfg in (command, configuration))  # fmt: skip
        different = [key for key in expected if key != "_name" and expected[key] != given.get(key)]
        found |= {(group, key): (expected[key], given.get(key)) for key in different}
    return found


# As the scripts in examples/ have them: `train` of glue/stages.sh, `together` of ca_mtl/runs.sh, `learn` of
# pemt/runs.sh.
TRAIN = (
    "DATA --user-dir fairseq_mtmoe --optimizer fused_adam --adam-betas (0.9,0.999) --clip-norm 1"
    " --lr-scheduler polynomial_decay --best-checkpoint-metric all --maximize-best-checkpoint-metric"
    " --no-epoch-checkpoints"
)
OF_TASKS = {
    "mt_tag_mixture": (
        f"{TRAIN} --task glue --criterion multitask --lr 5e-5 --arch mt_tag --init-encoder ENCODER --batch-size 128"
        " --max-update 30000 --total-num-update 30000 --warmup-updates 3000 --save-dir runs/glue/mt_tag-lr5e-05-seed1",
        "task.init_encoder=ENCODER",
    ),
    "ca_mtl_glue": (
        f"{TRAIN} --task glue --criterion multitask --lr 2e-5 --arch ca_mtl_base --init-encoder ENCODER --batch-size 32"
        " --max-update 60000 --total-num-update 60000 --warmup-updates 6000 --seed 12"
        " --conditional attention,bottleneck,alignment,norm --sampling-method uncertainty"
        " --virtual-epoch-size 192001 --save-dir runs/ca_mtl/ca_mtl-uncertainty-seed12",
        "task.init_encoder=ENCODER",
    ),
    "pemt_target": (
        f"{TRAIN} --task text_to_text --criterion pemt --lr 6e-4 --arch pemt_t5 --init-model T5 --batch-size 64"
        " --max-update 779 --total-num-update 779 --seed 42 --max-source-positions 256 --target-task rte"
        " --pemt-sources mnli.pt,qnli.pt --save-dir runs/pemt/rte-seed42",
        "task.target_task=rte model.pemt_sources='mnli.pt,qnli.pt' task.init_model=T5",
    ),
}
MODEL_OPTIONS = {
    "mt_tag_mixture": ("num_experts", "expert_gates", "expert_interval", "reuse_gate", "dropout"),
    "ca_mtl_glue": ("conditional", "conditional_form", "conditional_positions", "freeze_layers", "dropout"),
    "pemt_target": (
        "pemt_stage",
        "pemt_sources",
        "adapter",
        "adapter_rank",
        "adapter_alpha",
        "prompt_init",
        "no_prompt",
    ),
}


@pytest.mark.parametrize("name", OF_TASKS)
def test_a_configuration_of_tasks_equals_the_command_line(name):
    register()
    arguments, overrides = OF_TASKS[name]
    command = from_command_line(arguments)
    configuration = from_configuration("tasks", f"+experiment={name}", "task.data=DATA", *overrides.split())
    assert differing(command, configuration, GROUPS) == {}
    keys = MODEL_OPTIONS[name]
    assert [getattr(command.model, key) for key in keys] == [configuration.model[key] for key in keys]
    assert command.common.seed == configuration.common.seed


def test_every_configuration_gives_a_model_that_there_is():
    for path in (REPOSITORY / "configs" / "experiment").glob("*.yaml"):
        name = path.stem
        base = "translation" if name in ("wmt15", "ml50") else "tasks"
        cfg = from_configuration(base, f"+experiment={name}", "task.data=DATA")
        known = {field.name for field in fields(ARCH_MODEL_REGISTRY[cfg.model._name].__dataclass)}
        assert set(cfg.model) - known == set(), name


# fairseq's options that a translation training with experts refuses, has no use for, or sets itself
LEFT_OUT = {
    "model": {
        "adaptive_softmax_cutoff", "adaptive_softmax_dropout", "adaptive_softmax_factor", "base_layers", "base_shuffle",
        "base_sublayers", "cross_self_attention", "decoder_embed_path", "decoder_input_dim",
        "decoder_xformers_att_config", "encoder_embed_path", "encoder_xformers_att_config",
        "export", "max_source_positions", "max_target_positions", "merge_src_tgt_embed", "min_params_to_wrap",
        "no_cross_attention", "offload_activations", "quant_noise_pq", "quant_noise_pq_block_size",
        "quant_noise_scalar", "relu_dropout", "task_names",
    },
    "task": {
        "checkpoint_suffix", "continue_once", "dataset_impl", "enable_lang_ids",
        "enable_reservsed_directions_shared_datasets", "extra_data", "extra_lang_pairs", "finetune_from_model",
        "lang_tok_replacing_bos_eos", "langtoks", "langtoks_specs", "load_alignments", "max_epoch", "restore_file",
        "save_dir", "seed", "source_lang", "target_lang", "train_subset", "update_freq",
    },
    "criterion": {"sentence_avg"},
    "optimizer": {"lr"},
    "lr_scheduler": {"lr"},
}  # fmt: skip


@pytest.mark.parametrize("group", LEFT_OUT)
def test_the_commented_configuration_has_every_option(group):
    register()
    cfg = from_configuration("translation", "task.data=DATA")
    text = yaml.safe_load((REPOSITORY / "configs" / "translation.yaml").read_text())
    every = {key for key in cfg[group] if key != "_name"}
    if group == "model":
        every |= {field.name for field in fields(ARCH_MODEL_REGISTRY[cfg.model._name].__dataclass)} - {"_name"}
    assert every - set(text[group]) == LEFT_OUT[group]


def test_a_configuration_that_builds_on_another_starts(digits, tmp_path):
    """`ml50` and below it `wmt15`, with a smaller model and other languages."""
    sizes = {"layers": 2, "embed_dim": 16, "ffn_embed_dim": 32, "attention_heads": 2}
    small = [f"model.{side}_{key}={size}" for side in ("encoder", "decoder") for key, size in sizes.items()]
    run(
        "fairseq-hydra-train", "--config-dir", REPOSITORY / "configs", "--config-name", "translation",
        "+experiment=ml50", f"task.data={digits}", "task.langs=null", "task.lang_dict=null",
        "task.lang_pairs='en-aa,en-bb'", *small, "model.dense_updates=1", "model.num_experts=2",
        "optimization.max_update=2", "common.cpu=true", f"common.user_dir={REPOSITORY / 'fairseq_mtmoe'}",
        f"checkpoint.save_dir={tmp_path / 'run'}", f"hydra.run.dir={tmp_path / 'logs'}",
    )  # fmt: skip
    state = torch.load(tmp_path / "run" / "checkpoint_last.pt")
    assert state["optimizer_history"][-1]["num_updates"] == 2 and any(".moe." in key for key in state["model"])


@pytest.mark.scheduled
def test_seeds_one_after_the_other_and_a_command_line_alone(benchmark, tmp_path):
    """`--multirun`: each run is what it is alone, as the command line begins it, in a folder of its own."""
    folder = tmp_path / "runs" / "${model._name}-lr${optimization.lr.0}-seed${common.seed}"
    run(
        "fairseq-hydra-train", "--multirun", "--config-dir", REPOSITORY / "configs", "--config-name",
        "tasks", "+experiment=mt_tag_mixture", f"task.data={benchmark}",
        f"task.init_encoder={benchmark / 'encoder.pt'}", "dataset.batch_size=16",
        "task.glue_tasks='cola,wic'", "task.max_positions=24", "optimization.max_update=2", "common.cpu=true",
        f"common.user_dir={REPOSITORY / 'fairseq_mtmoe'}", f"hydra.run.dir={tmp_path}", f"hydra.sweep.dir={tmp_path}",
        "+model.dense_updates=1", "common.seed=1,2", f"checkpoint.save_dir='{folder}'",
    )  # fmt: skip
    _, *options = shlex.split(OF_TASKS["mt_tag_mixture"][0])
    run_here((
        benchmark, *options, "--init-encoder", benchmark / "encoder.pt", "--batch-size", 16, "--glue-tasks", "cola,wic",
        "--max-positions", 24, "--max-update", 2, "--cpu", "--dense-updates", 1, "--seed", 2, "--save-dir",
        tmp_path / "alone",
    ))  # fmt: skip
    names = ("runs/mt_tag-lr5e-05-seed1", "runs/mt_tag-lr5e-05-seed2", "alone")
    saved = [torch.load(tmp_path / name / "checkpoint_last.pt") for name in names]
    first, second, alone = (state["model"] for state in saved)
    assert any(".moe." in key for key in alone) and second.keys() == alone.keys()
    assert [key for key in alone if not torch.equal(second[key], alone[key])] == []
    assert [key for key in alone if not torch.equal(first[key], alone[key])] != []
    best = [state["extra_state"]["best"] for state in saved]
    assert best[0] > best[1] == best[2], "the first must be better, or it cannot keep the second from saving its best"


# The paper's, and fairseq's where the paper says nothing: blocks of each stack, width, inner size, heads, layer norms
# before the attention, one vocabulary; dropout is of all that fairseq drops: blocks, attention weights, inner values.
SIZES = {
    "": (6, 512, 2048, 8, False, False, (0.1, 0.0, 0.0)),
    "_tiny": (2, 64, 128, 2, False, True, (0.1, 0.0, 0.0)),
    "_wmt15": (6, 512, 2048, 8, True, True, (0.1, 0.0, 0.0)),
    "_ml50": (12, 1024, 4096, 16, True, True, (0.1, 0.0, 0.0)),
}


def size_of(model):
    encoder, decoder = model.encoder, model.decoder
    both = []
    for stack in (encoder, decoder):
        first = stack.layers[0]
        drops = (first.dropout_module.p, first.self_attn.dropout_module.p, first.activation_dropout_module.p)
        (inner, width), heads = first.fc1.weight.shape, first.self_attn.num_heads
        both.append((len(stack.layers), width, inner, heads, first.normalize_before, drops))
    assert both[0] == both[1]
    *sizes, drops = both[0]
    return (*sizes, encoder.embed_tokens is decoder.embed_tokens, drops)


def built(cfg):
    with torch.device("meta"), open_dict(cfg.model):
        cfg.model.dense_updates = 0
        return ARCH_MODEL_REGISTRY[cfg.model._name].build_model(cfg.model, stub_task())


@pytest.mark.parametrize("model", ["base_moe", "base_dense"])
@pytest.mark.parametrize("size", SIZES)
def test_named_sizes_are_what_their_names_say(model, size):
    register()
    cfg = from_command_line(f"DATA --arch {model}{size} --user-dir fairseq_mtmoe --task translation_heated")
    assert size_of(built(cfg)) == SIZES[size]
    if model == "base_moe" and size in ("_wmt15", "_ml50"):
        configuration = from_configuration("translation", f"+experiment={size[1:]}", "task.data=DATA")
        assert size_of(built(configuration)) == SIZES[size]


def test_the_commented_configuration_trains_as_the_command_line_does(digits, tmp_path):
    """Four updates through fairseq-hydra-train and of fairseq-train: the same parameters."""
    settings = yaml.safe_load((REPOSITORY / "configs" / "translation.yaml").read_text())
    own = {"max_update": 4, "dense_updates": 2, "lang_pairs": "en-aa,en-bb,en-cc", "save_dir": tmp_path / "command"}
    run(
        "fairseq-hydra-train", "--config-dir", REPOSITORY / "configs", "--config-name", "translation",
        f"task.data={digits}", "task.lang_pairs='en-aa,en-bb,en-cc'", f"checkpoint.save_dir={tmp_path / 'hydra'}",
        "optimization.max_update=4", "model.dense_updates=2", f"hydra.run.dir={tmp_path / 'logs'}",
        f"common.user_dir={REPOSITORY / 'fairseq_mtmoe'}",
    )  # fmt: skip
    arguments = [digits, *PLUGIN, "--cpu", "--seed", 1]
    del settings["task"]["data"]
    for group in ("model", *GROUPS):
        for key, value in settings[group].items():
            name = {"model": "arch"}.get(group, group) if key == "_name" else key
            value = own.get(key, value[0] if isinstance(value, list) else value)
            if value not in (None, False) and not str(value).startswith("${"):
                arguments += [f"--{name.replace('_', '-')}", *([] if value is True else [value])]
    run_here(arguments)
    hydra, command = (torch.load(tmp_path / kind / "checkpoint_last.pt")["model"] for kind in ("hydra", "command"))
    assert hydra.keys() == command.keys() and any(".moe." in key for key in hydra)
    assert [key for key in hydra if not torch.equal(hydra[key], command[key])] == []
