"""A configuration gives the same model and schedule as the command line."""

import re
import shlex

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
from tests.helpers.benchmark import make_benchmark, make_encoder
from tests.helpers.commands import PLUGIN, REPOSITORY, run
from tests.helpers.models import stub_task

COMMON = (
    "--user-dir fairseq_mtmoe --task translation_heated --encoder-langtok tgt --decoder-langtok --seed 1"
    " --sampling-method temperature --sampling-temperature 1.5 --heating-coefficient 1 --heating-epochs 30"
    " --virtual-epoch-size 1000000 --num-experts 16 --expert-gates base --dense-updates 20000"
    " --criterion moe_label_smoothed_cross_entropy --label-smoothing 0.1 --optimizer fused_adam --adam-betas (0.9,0.98)"
    " --lr-scheduler inverse_sqrt --warmup-updates 4000 --lr 0.0007 --max-update 100000 --clip-norm 1.0"
    " --max-tokens 8192 --validate-interval-updates 5000 --save-interval-updates 5000 --keep-interval-updates 2"
    " --no-epoch-checkpoints --log-interval 100"
)
WMT15 = ["cs", "de", "es", "et", "fi", "fr", "gu", "hi", "kk", "lt", "lv", "ro", "ru", "tr", "zh"]


def from_command_line(arguments):
    parser = options.get_training_parser()
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, input_args=shlex.split(arguments)))


def from_configuration(name, *overrides, system="base_sparse"):
    register()
    GlobalHydra.instance().clear()
    # fairseq asks for hydra's behaviour of version 1.1; what this sets holds for the whole process.
    with initialize_config_dir(str(REPOSITORY / "configs" / system), version_base="1.1"):
        hydra_init("config")
        cfg = compose(config_name=name, overrides=["common.user_dir=fairseq_mtmoe", *overrides])
    defaults = OmegaConf.to_container(OmegaConf.structured(FairseqConfig), resolve=False, enum_to_str=True)
    with open_dict(cfg):
        whole = OmegaConf.merge(OmegaConf.create(defaults), cfg)
    add_defaults(whole)
    return whole


def plain(node):
    values = OmegaConf.to_container(node, resolve=True, enum_to_str=True)
    values.pop("_name", None)
    return values


def shapes(cfg):
    return {name: tuple(p.shape) for name, p in built(cfg).named_parameters()}


@pytest.mark.parametrize("name", ["wmt15", "ml50"])
def test_configuration_equals_command_line(name):
    register()
    langs = {
        "wmt15": f" --langs {','.join(sorted([*WMT15, 'en']))} --lang-pairs {','.join(f'en-{lang}' for lang in WMT15)}",
        "ml50": " --lang-dict DATA/langs.txt --lang-pairs DATA/lang_pairs.txt",
    }[name]
    command = from_command_line(f"DATA --arch base_moe_{name} --save-dir runs/{name}{langs} {COMMON}")
    configuration = from_configuration(name, "task.data=DATA")
    assert {key for _, key in differing(command, configuration, GROUPS)} <= {"dataset_impl"}
    assert command.common.seed == configuration.common.seed
    expert_options = ("num_experts", "expert_gates", "expert_interval", "expert_combine", "dense_updates")
    assert [command.model[key] for key in expert_options] == [configuration.model[key] for key in expert_options]
    assert command.model.encoder_normalize_before == configuration.model.encoder_normalize_before
    assert shapes(command) == shapes(configuration)


GROUPS = ("task", "criterion", "optimizer", "lr_scheduler", "optimization", "dataset", "checkpoint")


def differing(command, configuration, groups):
    """The keys of these groups in which two configurations differ, with both values."""
    values = [(group, plain(command[group]), plain(configuration[group])) for group in groups]
    return {
        (group, key): (expected[key], given.get(key))
        for group, expected, given in values
        for key in expected
        if expected[key] != given.get(key)
    }


# As the scripts in examples/ have them: `train` of glue/stages.sh, `together` of ca_mtl/runs.sh and `adapt` of
# new_tasks.sh, `learn` of pemt/runs.sh.
TRAIN = (
    "DATA --user-dir fairseq_mtmoe --optimizer fused_adam --adam-betas (0.9,0.999) --clip-norm 1"
    " --lr-scheduler polynomial_decay --best-checkpoint-metric all --maximize-best-checkpoint-metric"
    " --no-epoch-checkpoints"
)
STAGE = f"{TRAIN} --task glue --criterion multitask"
TEXT = f"{TRAIN} --criterion pemt --seed 42 --task text_to_text --init-model T5 --max-source-positions 256"
CONDITIONAL = "--lr 2e-5 --batch-size 32 --arch ca_mtl_base --conditional attention,bottleneck,alignment,norm --seed 12"
OF_TASKS = {
    ("mt_tag", "mixture"): (
        f"{STAGE} --lr 5e-5 --arch mt_tag --init-encoder ENCODER --batch-size 128 --max-update 30000"
        " --total-num-update 30000 --warmup-updates 3000 --save-dir runs/glue/mt_tag-lr5e-05-seed1",
        ("task.init_encoder=ENCODER",),
    ),
    ("mt_tag", "fine_tune"): (
        f"{STAGE} --lr 5e-5 --arch mt_tag --glue-tasks rte --finetune-from-model LAST --batch-size 32 --max-update 779"
        " --total-num-update 779 --warmup-updates 78 --train-share 0.1 --reuse-gate mnli"
        " --save-dir runs/glue/rte-mt_tag-lr5e-05-seed1",
        (
            *("task.glue_tasks=rte", "checkpoint.finetune_from_model=LAST", "task.train_share=0.1"),
            "+model.reuse_gate=mnli",
        ),
    ),
    ("ca_mtl", "glue"): (
        f"{STAGE} {CONDITIONAL} --init-encoder ENCODER --max-update 60000 --total-num-update 60000"
        " --warmup-updates 6000 --virtual-epoch-size 192001 --sampling-method uncertainty"
        " --save-dir runs/ca_mtl/ca_mtl-uncertainty-seed12",
        ("task.init_encoder=ENCODER",),
    ),
    ("ca_mtl", "new_task"): (
        f"{STAGE} {CONDITIONAL} --glue-tasks scitail --finetune-from-model GROWN --max-update 3686"
        " --total-num-update 3686 --warmup-updates 368 --train-share 0.1 --train-share-seed 12 --freeze-layers 0"
        " --save-dir runs/ca_mtl/scitail-share0.1-seed12",
        ("task.glue_tasks=scitail", "task.train_share=0.1", "checkpoint.finetune_from_model=GROWN"),
    ),
    ("pemt", "source"): (
        f"{TEXT} --arch pemt_t5 --source-task mnli --pemt-stage source --batch-size 128 --lr 5e-4 --max-update 15340"
        " --total-num-update 15340 --warmup-updates 500 --save-dir runs/pemt/source-mnli-lora",
        ("task.source_task=mnli", "task.init_model=T5"),
    ),
    ("pemt", "target"): (
        f"{TEXT} --arch pemt_t5 --target-task rte --pemt-sources mnli.pt,qnli.pt --batch-size 64 --lr 6e-4"
        " --max-update 779 --total-num-update 779 --save-dir runs/pemt/rte-seed42",
        ("task.target_task=rte", "model.pemt_sources='mnli.pt,qnli.pt'", "task.init_model=T5"),
    ),
    ("pemt", "encoder"): (
        f"{TRAIN} --criterion pemt --seed 42 --task glue --init-encoder BERT --max-positions 128 --arch pemt_bert"
        " --glue-tasks rte --pemt-sources mnli.pt,qnli.pt --batch-size 64 --lr 6e-4 --max-update 779"
        " --total-num-update 779 --save-dir runs/pemt/bert-rte-seed42",
        ("task.glue_tasks=rte", "model.pemt_sources='mnli.pt,qnli.pt'", "task.init_encoder=BERT"),
    ),
}
MODEL_OPTIONS = {
    "mt_tag": ("num_experts", "expert_gates", "expert_interval", "reuse_gate", "dropout"),
    "ca_mtl": ("conditional", "conditional_form", "conditional_positions", "freeze_layers", "dropout"),
    "pemt": ("pemt_stage", "pemt_sources", "adapter", "adapter_rank", "adapter_alpha", "prompt_init", "no_prompt"),
}


@pytest.mark.parametrize(("system", "name"), OF_TASKS)
def test_a_configuration_of_tasks_equals_the_command_line(system, name):
    register()
    arguments, overrides = OF_TASKS[system, name]
    command = from_command_line(arguments)
    configuration = from_configuration(name, "task.data=DATA", *overrides, system=system)
    assert differing(command, configuration, GROUPS) == {}
    keys = MODEL_OPTIONS[system]
    assert [getattr(command.model, key) for key in keys] == [configuration.model[key] for key in keys]
    assert command.common.seed == configuration.common.seed


def test_24_tasks_differ_from_eight_in_what_the_paper_says():
    register()
    overrides = ("task.data=DATA", "task.init_encoder=ENCODER")
    glue, tasks24 = (from_configuration(name, *overrides, system="ca_mtl") for name in ("glue", "tasks24"))
    changed = differing(glue, tasks24, (*GROUPS, "model"))
    updates = {("lr_scheduler", "total_num_update"), ("lr_scheduler", "warmup_updates"), ("optimization", "max_update")}
    assert changed[("task", "glue_tasks")] == ("all", "mtl24") and changed[("task", "max_positions")] == (128, 256)
    assert set(changed) - updates == {
        *(("task", name) for name in ("glue_tasks", "max_positions", "virtual_epoch_size", "save_dir")),
        *(("model", "conditional_form"), ("model", "conditional_positions"), ("checkpoint", "save_dir")),
    }
    assert tasks24.optimization.max_update == tasks24.lr_scheduler.total_num_update == 8 * 392_702 // 32


@pytest.mark.slow
def test_seeds_and_learning_rates_one_after_the_other(tmp_path):
    """`--multirun`: each run is what it is alone, in a folder of its own."""
    make_benchmark(tmp_path, {"train": 40, "dev": 8})
    make_encoder(tmp_path / "encoder.pt")
    folder = tmp_path / "runs" / "${model._name}-lr${optimization.lr.0}-seed${common.seed}"
    options = (
        "--config-dir", REPOSITORY / "configs" / "mt_tag", "--config-name", "mixture", f"task.data={tmp_path}",
        f"task.init_encoder={tmp_path / 'encoder.pt'}", "task.glue_tasks='cola,wic'", "task.max_positions=24",
        "optimization.max_update=2", "common.cpu=true", f"common.user_dir={REPOSITORY / 'fairseq_mtmoe'}",
        "dataset.batch_size=16", f"hydra.run.dir={tmp_path}", f"hydra.sweep.dir={tmp_path}",
    )  # fmt: skip
    run("fairseq-hydra-train", "--multirun", *options, "common.seed=1,2", f"checkpoint.save_dir='{folder}'")
    run("fairseq-hydra-train", *options, "common.seed=2", f"checkpoint.save_dir='{tmp_path / 'alone'}'")
    names = ("runs/mt_tag-lr5e-05-seed1", "runs/mt_tag-lr5e-05-seed2", "alone")
    saved = [torch.load(tmp_path / name / "checkpoint_last.pt") for name in names]
    first, second, alone = (state["model"] for state in saved)
    assert [key for key in alone if not torch.equal(second[key], alone[key])] == []
    assert [key for key in alone if not torch.equal(first[key], alone[key])] != []
    best = [state["extra_state"]["best"] for state in saved]
    assert best[0] > best[1] == best[2], "the first must be better, or it cannot keep the second from saving its best"
    assert all((tmp_path / name / "checkpoint_best.pt").exists() for name in names)


# The paper's, and fairseq's where the paper says nothing: blocks of each stack, width, inner size, heads, layer norms
# before the attention, one vocabulary; dropout is of all that fairseq drops: blocks, attention weights, inner values.
SIZES = {
    "": (6, 512, 2048, 8, False, False, (0.1, 0.0, 0.0)),
    "_tiny": (2, 64, 128, 2, False, True, (0.1, 0.0, 0.0)),
    "_wmt15": (6, 512, 2048, 8, True, True, (0.1, 0.0, 0.0)),
    "_ml50": (12, 1024, 4096, 16, True, True, (0.1, 0.0, 0.0)),
}


def size_of(model):
    """What a built model is, by its parts."""
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


@pytest.mark.parametrize("name", ["wmt15", "ml50"])
def test_configurations_have_the_sizes_of_their_names(name):
    assert size_of(built(from_configuration(name, "task.data=DATA"))) == SIZES[f"_{name}"]


def test_every_key_of_the_debug_configuration_is_commented():
    lines = (REPOSITORY / "configs" / "debug" / "tiny.yaml").read_text().splitlines()
    keys = [line for line in lines if re.match(r"  \w+: ", line) and "_name:" not in line]
    bare = [line for line in keys if "#" not in line and "decoder_" not in line]
    assert len(keys) > 40 and not bare


@pytest.mark.slow
def test_debug_configuration_trains_as_the_command_line_does(digits, tmp_path):
    """Four updates through fairseq-hydra-train and through fairseq-train: the same parameters."""
    settings = yaml.safe_load((REPOSITORY / "configs" / "debug" / "tiny.yaml").read_text())
    short = {"max_update": 4, "dense_updates": 2}
    run(
        "fairseq-hydra-train", "--config-dir", REPOSITORY / "configs" / "debug", "--config-name", "tiny",
        f"task.data={digits}", "task.lang_pairs='en-aa,en-bb,en-cc'", f"checkpoint.save_dir={tmp_path / 'hydra'}",
        f"optimization.max_update={short['max_update']}", f"model.dense_updates={short['dense_updates']}",
        f"hydra.run.dir={tmp_path / 'logs'}", f"common.user_dir={REPOSITORY / 'fairseq_mtmoe'}",
    )  # fmt: skip
    arguments = []
    for group, values in settings.items():
        for key, value in values.items() if group not in ("defaults", "hydra", "common") else ():
            option = f"--{key.replace('_', '-')}"
            if key == "_name":
                arguments += [{"model": "--arch", "lr_scheduler": "--lr-scheduler"}.get(group, f"--{group}"), value]
            elif key in ("data", "lang_pairs", "save_dir", *short):
                continue
            elif isinstance(value, bool):
                arguments += [option] if value else []
            else:
                arguments += [option, value[0] if isinstance(value, list) else value]
    run(
        "fairseq-train", digits, *PLUGIN, *arguments, "--lang-pairs", "en-aa,en-bb,en-cc", "--cpu", "--seed", 1,
        "--save-dir", tmp_path / "command", *(x for key in short for x in (f"--{key.replace('_', '-')}", short[key])),
    )  # fmt: skip
    hydra, command = (torch.load(tmp_path / kind / "checkpoint_last.pt")["model"] for kind in ("hydra", "command"))
    assert hydra.keys() == command.keys() and any(".moe." in key for key in hydra)
    assert [key for key in hydra if not torch.equal(hydra[key], command[key])] == []
