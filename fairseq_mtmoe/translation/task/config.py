"""The options of `--task translation_heated`.

They are those of fairseq's `translation_multi_simple_epoch`, and additional ones.

Every option of fairseq's task keeps its name, default and meaning. Dictionaries and lists are
strings on the command line and in configuration files: `lang_pairs: en-de,en-ro`,
`sampling_weights: "{'main:en-de': 0.7}"`.
"""

from dataclasses import dataclass
from typing import Optional

from omegaconf import II

from fairseq_mtmoe.core.options import option
from fairseq_mtmoe.core.typed import between, one_of
from fairseq_mtmoe.multitask.config import SamplingConfig

NEW_EMBEDDINGS = "new-embeddings"


@dataclass
class TranslationHeatedConfig(SamplingConfig):
    """Options of translation."""

    dataset_impl: Optional[str] = option(II("dataset.dataset_impl"), None)
    data: Optional[str] = option(
        None,
        "data directory, or several separated by colons; each epoch reads the next directory or "
        "shard",
    )
    source_lang: Optional[str] = option(None, "source language for generation", argparse_alias="-s")
    target_lang: Optional[str] = option(None, "target language for generation", argparse_alias="-t")
    lang_pairs: Optional[str] = option(
        None, "language pairs to train, such as en-de,en-ro, or a file with this list"
    )
    init_model: Optional[str] = option(
        None,
        "dense model to start from, a file written by `mtmoe import-hf` or a checkpoint; the new "
        "model takes its weights, sizes, languages and language tokens, and copies feed-forward "
        "layers into experts where it has some",
    )
    train_only: Optional[str] = option(
        None,
        "new-embeddings: train only the embeddings of the symbols that `mtmoe extend` added to "
        "the model of --init-model (a PEMT model also trains its adapters); all other weights "
        "stay exactly as they are",
        one_of((NEW_EMBEDDINGS,)),
    )
    keep_inference_langtok: bool = option(False, "keep language tokens in the output of generation")
    task_ids: str = option(
        "target",
        "task of a sentence, by which gates, experts and conditional parts distinguish sentences: "
        "target (its target language), source, pair, or groups of target languages such as "
        "de+nl,es+it+pt (a language that is not named is a group of its own)",
    )
    description: Optional[str] = option(
        None,
        "sentence that describes the only pair of --lang-pairs; its embeddings initialize PEMT's "
        "prompt (default: a description of the two languages)",
    )
    sample_pieces: float = option(
        0.0,
        "subword regularisation: segment the training sentences at random in each epoch, by the "
        "data directory's SentencePiece model. The value is the probability with which BPE skips "
        "a merge (BPE-dropout), or the exponent of a unigram model's probabilities (lower is more "
        "random); 0: off. Sentences get longer than --max-tokens counts",
        between(0, 1),
    )
    sample_pieces_of: str = option(
        "both",
        "side that --sample-pieces segments at random: source, target or both",
        one_of(("both", "source", "target")),
    )
    eval_bleu: bool = option(
        False,
        "translate the validation set and log its BLEU: of each pair, the mean of each tier, and "
        "the mean of all pairs (`bleu`)",
    )
    eval_chrf: bool = option(
        False,
        "translate the validation set and log its chrF++: of each pair, the mean of each tier, "
        "and the mean of all pairs (`chrf`)",
    )
    eval_bleu_args: str = option(
        "{}",
        "search options of --eval-bleu and --eval-chrf: beam, lenpen, max_len_a and max_len_b as "
        'JSON, such as {"beam": 4} (default: beam 5)',
    )
    eval_bleu_detok: str = option(
        "space", "detokenizer of translations, such as moses; space leaves them as they are"
    )
    eval_bleu_detok_args: str = option("{}", "arguments of --eval-bleu-detok as JSON")
    eval_bleu_remove_bpe: Optional[str] = option(
        None,
        "how subwords are joined: sentencepiece, subword_nmt, or their continuation mark "
        "(default: by the dictionary)",
        argparse_const="@@ ",
    )
    eval_tokenized_bleu: bool = option(
        False, "compute BLEU over the words of the binarized references, split at spaces"
    )
    eval_bleu_print_samples: bool = option(
        False, "log one translation of each batch and its reference"
    )
    langs: Optional[str] = option(
        None,
        "comma-separated languages that pairs may contain, in the order of their language tokens",
    )
    lang_dict: Optional[str] = option(None, "file with one language per line, instead of --langs")
    source_dict: Optional[str] = option(
        None, "dictionary of all source languages (default: dict.LANG.txt of each)"
    )
    target_dict: Optional[str] = option(
        None, "dictionary of all target languages (default: dict.LANG.txt of each)"
    )
    lang_tok_style: str = option(
        "multilingual",
        "language tokens: multilingual (__de__) or mbart ([de])",
        one_of(("multilingual", "mbart")),
    )
    load_alignments: bool = option(False, "load the binarized alignments")
    left_pad_source: str = option("True", "pad the source on the left")
    left_pad_target: str = option("False", "pad the target on the left")
    max_source_positions: int = option(1024, "maximum length of a source sentence in tokens")
    max_target_positions: int = option(1024, "maximum length of a target sentence in tokens")
    upsample_primary: int = option(
        1, "number of times that an epoch repeats the split train, if train1, train2, … exist"
    )
    truncate_source: bool = option(False, "truncate the source to --max-source-positions")
    encoder_langtok: Optional[str] = option(
        None, "begin each source sentence with a language token: src or tgt", one_of(("src", "tgt"))
    )
    encoder_langtok_last: bool = option(
        False,
        "put the encoder's language token after the sentence's end, as in NLLB with "
        "legacy_behaviour",
    )
    decoder_langtok: bool = option(
        False, "begin each target sentence with the target language's token"
    )
    lang_tok_replacing_bos_eos: bool = option(False, "replace <s> and </s> by language tokens")
    enable_lang_ids: bool = option(
        False, "pass each sentence's language ids to a model that accepts them"
    )
    enable_reservsed_directions_shared_datasets: bool = option(
        False, "share data sets between reversed directions"
    )
    extra_data: Optional[str] = option(
        None, "dictionary from additional kinds of data to their directories"
    )
    extra_lang_pairs: Optional[str] = option(
        None, "dictionary from the kinds of --extra-data to their comma-separated pairs"
    )
    fixed_dictionary: Optional[str] = option(None, "one dictionary for all languages")
    langtoks_specs: str = option(
        "main", "comma-separated kinds of data with their own language tokens"
    )
    langtoks: Optional[str] = option(
        None,
        "dictionary from kinds of data to their (source, target) language tokens, such as "
        "{'main': ('src', 'tgt')}",
    )
    sampling_weights_from_file: Optional[str] = option(
        None, "JSON file with a dictionary as in --sampling-weights"
    )
    sampling_weights: Optional[str] = option(
        None,
        "dictionary from pairs to sampling weights, such as {'main:en-de': 0.7, 'main:en-ro': 0.3}",
    )
    virtual_data_size: Optional[int] = option(
        None, "number of sentences in a pass over the data when pairs are sampled"
    )
