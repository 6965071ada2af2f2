"""Conversion of the task's configuration to the arguments that fairseq expects.

Strings become lists and dictionaries once the configuration is complete. Wrong options are refused
before anything is loaded. Checkpoints store `SETTINGS`, which replace the options of generation
(`take_over`): with another order of `langs`, a language would get the token and the gate of another
one.
"""

import ast
import itertools
import logging
import os
import re
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from fairseq import utils
from fairseq.data import Dictionary
from fairseq.data.multilingual import multilingual_utils
from omegaconf import DictConfig, OmegaConf

from fairseq_mtmoe.core.errors import (
    UserError,
    flag,
    raise_invalid,
    shortened,
    suggestion,
    unknown_language,
    visible,
)
from fairseq_mtmoe.core.files import read_json, read_text
from fairseq_mtmoe.core.options import check_rules
from fairseq_mtmoe.core.typed import OR_LIST, at_least, fault
from fairseq_mtmoe.translation.data.file_names import (
    TOKEN_STYLE,
    dictionary_name,
    indexed_sides,
    joined_dictionary,
)
from fairseq_mtmoe.translation.data.recorded_sizes import folders_in, with_shards
from fairseq_mtmoe.translation.data.vocabulary import NEW_SYMBOLS
from fairseq_mtmoe.translation.task.config import TranslationHeatedConfig

logger = logging.getLogger(__name__)

TASK_IDS = ("target", "source", "pair")
FORMS = (
    *("langs", "langtoks", "langtoks_specs", "lang_tok_style", "encoder_langtok_last"),
    *("lang_tok_replacing_bos_eos", "enable_lang_ids"),
)
SETTINGS = (*FORMS, "task_ids")


# Rules for the values of an option's dictionary.
_TOKENS = Annotated[tuple[str | None, str | None], OR_LIST]
_VALUES: dict[str, tuple[str, Any]] = {
    "langtoks": ("two language tokens such as ('src', 'tgt'), or None in their place", _TOKENS),
    "extra_data": ("a data directory", str),
    "extra_lang_pairs": ("a list such as en-de,en-ro", str),
    "sampling_weights": ("a number of at least 0", Annotated[float, at_least(0)]),
}


def arguments(cfg: Any, forms: Mapping[str, Any] = {}, has_data: bool = True) -> Namespace:
    """Return the arguments, checked as far as possible without dictionaries and data.

    forms: `FORMS` of the model that the run starts from, which replace the options.
    has_data: without data, the languages must be given, and no dictionary files are needed.
    """
    args = _namespace(cfg, forms)
    if has_data:
        if not args.data:
            raise_invalid("data", "a data directory", args.data)
        args.data = with_shards(folders_in(args.data))
    _check_choices(args)
    _read_dictionaries(args)
    # fairseq completes `langtoks` by other options.
    args.insists_on_tokens = "main" in (args.langtoks or {})
    if args.extra_data:
        args.extra_data = {kind: with_shards(data) for kind, data in args.extra_data.items()}
    args.langtoks_specs = args.langtoks_specs.split(",")
    if args.lang_pairs:  # or a file with them, as in fairseq
        if os.path.isfile(args.lang_pairs):
            args.lang_pairs = read_text(args.lang_pairs).strip()
        args.lang_pairs = re.split("[,\n]", args.lang_pairs)
    _complete_languages(args)
    _check_task_ids(args)
    _check_pairs(args, "langs" in forms)
    if has_data:
        _check_dictionaries(args)
    return args


def is_training(args: Namespace) -> bool:
    """Return whether options are for training; only generation has --source-lang."""
    return args.source_lang is None and args.target_lang is None


def all_pairs(args: Namespace) -> list[str]:
    """Return the pairs to train of all kinds of data, without duplicates."""
    extra = [pair for pairs in (args.extra_lang_pairs or {}).values() for pair in pairs.split(",")]
    return list(dict.fromkeys(args.lang_pairs + extra))


def _pairs_to_load(args: Namespace) -> list[str]:
    return all_pairs(args) if is_training(args) else [f"{args.source_lang}-{args.target_lang}"]


def task_names(args: Namespace, langs: list[str]) -> list[str]:
    """Return the tasks of `--task-ids`: pairs, or languages or groups.

    Languages and groups are in the order of `langs`. In training these are the languages that are a
    target (with `source`, a source) of a pair, as no others need experts.
    """
    pairs = all_pairs(args)
    if args.task_ids == "pair":
        return pairs
    if is_training(args) and pairs:
        side = 0 if args.task_ids == "source" else -1
        needed = {pair.split("-")[side] for pair in pairs}
        langs = [lang for lang in langs if lang in needed]
    return list(dict.fromkeys(task_of_language(args.task_ids, lang) for lang in langs))


def task_of_language(task_ids: str, lang: str) -> str:
    """Return a language's group if `--task-ids` names it in one, else the language."""
    return next((group for group in task_ids.split(",") if lang in group.split("+")), lang)


def _check_task_ids(args: Namespace) -> None:
    named = re.split("[,+]", args.task_ids)
    if args.task_ids in TASK_IDS:
        return
    names_others = args.langs and not set(named) <= set(args.langs)
    if "+" not in args.task_ids or len(set(named)) < len(named) or names_others:
        rule = (
            f"one of {', '.join(TASK_IDS)}, or groups such as de+nl,es+it of the languages, each "
            "named once"
        )
        raise_invalid("--task-ids", rule, args.task_ids)


def _namespace(cfg: Any, forms: Mapping[str, Any]) -> Namespace:
    """Return options as on the command line.

    The configuration may be from a checkpoint of fairseq's own task.
    """
    values: Any = vars(cfg)
    if isinstance(cfg, DictConfig):
        values = OmegaConf.to_container(cfg, resolve=True)
    values = {**values, **forms}
    values.pop("_name", None)
    if "langs" in forms:
        values["lang_dict"] = None
    for name in ("langs", "lang_pairs", "langtoks_specs"):
        if isinstance(values[name], list):
            values[name] = ",".join(values[name])
    for name in ("left_pad_source", "left_pad_target"):
        values[name] = str(values[name])
    return Namespace(**values)


def _check_choices(args: Namespace) -> None:
    check_rules(args, TranslationHeatedConfig)
    style = os.path.join(utils.split_paths(args.data)[0], TOKEN_STYLE)
    if is_training(args) and os.path.isfile(style):
        wanted = read_text(style).strip()
        if args.lang_tok_style != wanted:
            rule = f"{wanted}, the style of the data's recipe in {style}"
            raise_invalid("--lang-tok-style", rule, args.lang_tok_style)
    for name in ("sample_pieces", "lang_tok_replacing_bos_eos"):
        if args.load_alignments and getattr(args, name):
            raise UserError(f"`--load-alignments` cannot be combined with `{flag(name)}`.")


def _read_dictionaries(args: Namespace) -> None:
    for name in _VALUES:
        setattr(args, name, _dictionary(name, getattr(args, name)))
    if path := args.sampling_weights_from_file:
        args.sampling_weights = read_json(path, "the JSON file of --sampling-weights-from-file")
        if not isinstance(args.sampling_weights, dict):
            raise_invalid(f"the content of {path}", "a dictionary", args.sampling_weights)
    for name, (rule, kind) in _VALUES.items():
        for key, value in (getattr(args, name) or {}).items():
            if fault(value, kind) is not None:
                raise_invalid(f"the value of {key} in {flag(name)}", rule, value)


def _dictionary(name: str, text: str | None) -> dict[str, Any] | None:
    if text is None or isinstance(text, dict):
        return text
    try:
        value = ast.literal_eval(text)
    # A key may be a list, and there may be a thousand brackets.
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise_invalid(flag(name), "a Python dictionary", text)
    return value


def _complete_languages(args: Namespace) -> None:
    """Fill in `langs` from the options or the pairs.

    In generation, it may be from the data directory.
    """
    if args.langs and args.lang_dict:
        raise UserError("`--langs` cannot be combined with `--lang-dict`.")
    if is_training(args) and not args.lang_pairs:
        raise UserError("`--lang-pairs` is required: list the pairs to train, such as en-de,en-ro.")
    if not is_training(args) and not (args.source_lang and args.target_lang):
        raise UserError("`--source-lang` and `--target-lang` must be given together.")
    if args.lang_dict:
        if not os.path.isfile(args.lang_dict):
            raise_invalid("--lang-dict", "an existing file", args.lang_dict)
        args.langs = read_text(args.lang_dict).split()
        args.lang_dict = None
    elif args.langs:
        args.langs = args.langs.split(",")
    elif args.lang_pairs:
        args.langs = sorted({lang for pair in all_pairs(args) for lang in pair.split("-")})
    else:
        folder = utils.split_paths(args.data)[0]
        _check_folder(folder)
        files = indexed_sides(folder)
        langs = sorted({lang for file in files for lang in (file.source, file.target)})
        if not langs:
            raise_invalid(
                "data", "a directory with binarized data such as train.en-de.en.idx", folder
            )
        sides = (args.source_lang, args.target_lang)
        args.langs_beyond_data = [lang for lang in sides if lang not in langs]
        args.langs = langs + args.langs_beyond_data
    if not args.lang_pairs:
        args.lang_pairs = _pairs_to_load(args)


def _check_folder(folder: str) -> None:
    if not os.path.isdir(folder):
        raise_invalid("data", "an existing directory", folder)


def _check_pairs(args: Namespace, are_of_model: bool) -> None:
    for pair in _pairs_to_load(args):
        if not re.fullmatch(r"[^-]+-[^-]+", pair):
            raise_invalid("--lang-pairs", "a list such as en-de,en-ro", pair)
        for lang in pair.split("-"):
            if lang not in args.langs:
                if are_of_model:
                    raise unknown_language("--lang-pairs", lang, args.langs)
                raise unknown_in_pair(lang, pair, args.langs)


def unknown_in_pair(lang: str, pair: str, langs: list[str]) -> UserError:
    """Return the error of a pair's language that is none of `langs`."""
    return UserError(
        f"The language {lang} of the pair {pair} is unknown; known languages are "
        f"{shortened(langs, lang)}."
    )


def _check_dictionaries(args: Namespace) -> None:
    folders = utils.split_paths(args.data)
    for folder in folders:
        _check_folder(folder)
    for name in ("source_dict", "target_dict", "fixed_dictionary"):
        path = getattr(args, name)
        if path and not os.path.isfile(path):
            raise_invalid(flag(name), "an existing file", path)
    if args.fixed_dictionary:
        return
    for pair in _pairs_to_load(args):
        for side, lang in zip(("source_dict", "target_dict"), pair.split("-"), strict=True):
            file = dictionary_name(lang)
            if getattr(args, side) or os.path.isfile(os.path.join(folders[0], file)):
                continue
            joined = None if is_training(args) else joined_dictionary(folders[0])
            if joined is None:
                names = [path.name for path in Path(folders[0]).glob(dictionary_name("*"))]
                raise UserError(
                    f"`{folders[0]}` contains no {file}, the dictionary of {lang}"
                    f"{suggestion(file, names)}."
                )
            setattr(args, side, joined)


def check_training(args: Namespace) -> None:
    """Check that options are for training, and leave no data out (UserError).

    A validation of older checkpoints accepts extra data without pairs, which fairseq ignores.
    """
    if not is_training(args):
        raise UserError(
            "`--source-lang` and `--target-lang` are for generation: train with `--lang-pairs`."
        )
    for name, other in itertools.permutations(("extra_data", "extra_lang_pairs")):
        kinds = {"main", *(getattr(args, name) or {})}
        for kind in getattr(args, other) or {}:
            if kind not in kinds:
                rule = f"a dictionary with {kind}, as {flag(other)} has it"
                raise_invalid(flag(name), rule, getattr(args, name))


def saved_settings(args: Namespace) -> dict[str, Any]:
    """Return the settings and the pairs that a checkpoint stores, as plain containers."""
    return {**{name: getattr(args, name) for name in SETTINGS}, "lang_pairs": all_pairs(args)}


def new_symbols(settings: Mapping[str, Any]) -> list[int]:
    """Return the numbers of new source and target symbols to train (UserError: none)."""
    counts: list[int] = settings.get(NEW_SYMBOLS, [])
    if not any(counts):
        raise UserError(
            "`--train-only` requires an `--init-model` with new symbols, which is a file of "
            "`mtmoe extend`."
        )
    return counts


def take_over(args: Namespace, state: Mapping[str, Any]) -> bool:
    """Replace the options by a checkpoint's settings; return whether any changed."""
    changed = _differing(args, state)
    for name, value in changed.items():
        logger.info(
            f"from the checkpoint: {name} = {visible(value)} instead of {getattr(args, name)}"
        )
        setattr(args, name, value)
    for pair in _pairs_to_load(args) if changed else ():
        for option, lang in zip(("--source-lang", "--target-lang"), pair.split("-"), strict=True):
            if lang not in args.langs:
                named_by = "a language of --lang-pairs" if is_training(args) else option
                rule = f"one of the model's languages {shortened(args.langs, lang)}"
                raise_invalid(named_by, rule, lang)
    return bool(changed)


def warn_of_changes(args: Namespace, state: Mapping[str, Any]) -> None:
    """Warn of settings that differ from the checkpoint that a run begins with.

    Languages may differ.
    """
    changed = _differing(args, state)
    for name in changed:
        if name == "langs":
            continue
        was = f"{name} was {visible(changed[name])} when the checkpoint was trained"
        logger.warning(f"{was}, and is {getattr(args, name)} from now on")


def _differing(args: Namespace, state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: state[name]
        for name in SETTINGS
        if name in state and state[name] != getattr(args, name)
    }


def check_language_tokens(args: Namespace, dictionary: Dictionary, owner: str = "") -> None:
    """Check that the dictionary has the tokens that `--langtoks` needs (UserError).

    owner: whose options these are, for the error.
    """
    all_specs = {spec for specs in args.langtoks.values() for spec in specs if spec is not None}
    for spec in all_specs:
        token = multilingual_utils.get_lang_tok(args.langs[0], args.lang_tok_style, spec)
        if token not in dictionary:
            rule = f"kinds of data that give {token}, which `{spec}` in --langtoks needs"
            raise_invalid(f"--langtoks-specs{owner}", rule, ",".join(args.langtoks_specs))


def relabel(dicts: Mapping[str, Dictionary], sizes: Mapping[int, int], args: Namespace) -> None:
    """Replace the dictionaries' language tokens by those of `args`.

    sizes: the number of symbols before the language tokens, by the dictionary's `id`.
    """
    distinct = {id(dictionary): dictionary for dictionary in dicts.values()}
    for dictionary in distinct.values():
        size = sizes[id(dictionary)]
        for symbol in dictionary.symbols[size:]:
            del dictionary.indices[symbol]
        del dictionary.symbols[size:], dictionary.count[size:]
        multilingual_utils.augment_dictionary(
            dictionary=dictionary,
            language_list=args.langs,
            lang_tok_style=args.lang_tok_style,
            langtoks_specs=args.langtoks_specs,
            extra_data=args.extra_data,
        )


# ---- generation ----

_LEFT_OUT = {
    "replace_unk": "because data of `--task translation_heated` have no text to take words from",
    "lm_path": (
        "because a language model does not have the language tokens of `--task translation_heated`"
    ),
    "constraints": "because fairseq has no constraints for multilingual tasks",
    **dict.fromkeys(
        ("print_step", "retain_iter_history"), "because no model of ours writes in iterations"
    ),
}


def check_decoding(args: Namespace) -> None:
    """Check generation options that fairseq does not check itself (UserError)."""
    if not hasattr(args, "nbest"):
        return
    reasons = dict(_LEFT_OUT)
    if args.diverse_beam_groups > 0:
        why = "because fairseq's search by groups fails when a sentence has ended"
        reasons["diverse_beam_groups"] = why
    if hasattr(args, "buffer_size"):  # fairseq-interactive
        why = "because `fairseq-interactive` has no references"
        reasons |= dict.fromkeys(("score_reference", "prefix_size"), why)
    for name, why in reasons.items():
        if getattr(args, name):
            raise UserError(f"`{flag(name)}` cannot be used, {why}.")
    if args.no_repeat_ngram_size == 1:
        raise_invalid("--no-repeat-ngram-size", "at least 2, or 0 for none", 1)
    if args.score_reference and args.print_alignment == "soft":
        raise_invalid("--print-alignment", "hard with `--score-reference`", "soft")
