"""The options of `--task translation_heated`: those of fairseq's `translation_multi_simple_epoch`, and some more.

Every option of that task keeps its name, default and meaning. Dictionaries and lists are written as strings, on the
command line and in a configuration file alike: `lang_pairs: en-de,en-ro`, `sampling_weights: "{'main:en-de': 0.7}"`.
"""

from dataclasses import dataclass
from typing import Optional

from omegaconf import II

from fairseq_mtmoe.tasks._multitask.config import SamplingConfig, option


@dataclass
class TranslationHeatedConfig(SamplingConfig):
    """Options of translation, after those of all tasks."""

    dataset_impl: Optional[str] = option(II("dataset.dataset_impl"), None)
    data: Optional[str] = option(
        None, "data directory; several, separated by colons, are shards that take turns, as are those in a directory"
    )
    source_lang: Optional[str] = option(None, "source language of generation", argparse_alias="-s")
    target_lang: Optional[str] = option(None, "target language of generation", argparse_alias="-t")
    lang_pairs: Optional[str] = option(None, "language pairs to train, such as en-de,en-ro; or a file with this list")
    init_model: Optional[str] = option(
        None,
        "dense model that a new one begins with, a file of `mtmoe import-hf` or a checkpoint: its weights, sizes, "
        "languages and forms of sentences; feed-forwards become experts where the new one has some",
    )
    train_only: Optional[str] = option(
        None,
        "new-embeddings: train the embeddings of the symbols that `mtmoe extend` gave the model of --init-model, and "
        "leave all else as it is, bit for bit; a model that borrows trains them beside its adapters",
    )
    keep_inference_langtok: bool = option(False, "keep language tokens in the output of generation")
    task_ids: str = option(
        "target",
        "what a sentence's task is: its target language, its source language, its pair, or the group of its target "
        "language, such as de+nl,es+it+pt (a language that is not named is a group of its own)",
    )
    description: Optional[str] = option(
        None,
        "a sentence that says what the only pair of --lang-pairs is, for a model that borrows from other pairs "
        "(default: what is known of its two languages)",
    )
    sample_pieces: float = option(
        0.0,
        "subword regularisation of training by the data directory's SentencePiece model, drawn in each epoch: the "
        "share of merges that BPE leaves out, or the exponent of a unigram model's probabilities, where less is more "
        "random (0: off); sentences get longer than --max-tokens counts",
    )
    sample_pieces_of: str = option("both", "whose pieces --sample-pieces draws: source, target or both")
    eval_bleu: bool = option(False, "validate by BLEU, too: of each pair, tiers' means and the mean of all, `bleu`")
    eval_chrf: bool = option(False, "validate by chrF++, too, likewise: `chrf`")
    eval_bleu_args: str = option(
        "{}", 'the search of both: beam, lenpen, max_len_a and max_len_b as JSON, such as {"beam": 4} (default: beam 5)'
    )
    eval_bleu_detok: str = option("space", "detokenizer of what is translated, such as moses; space leaves it as it is")
    eval_bleu_detok_args: str = option("{}", "its arguments, as JSON")
    eval_bleu_remove_bpe: Optional[str] = option(
        None,
        "how subwords join: sentencepiece, subword_nmt, or their mark (default: as the dictionary's look)",
        argparse_const="@@ ",
    )
    eval_tokenized_bleu: bool = option(False, "BLEU over the words of the binarized references, split at spaces")
    eval_bleu_print_samples: bool = option(False, "show a translation of each batch and its reference in the log")
    langs: Optional[str] = option(
        None, "comma-separated languages that may occur in pairs; their order is that of the language tokens"
    )
    lang_dict: Optional[str] = option(None, "a file with one such language on each line")
    source_dict: Optional[str] = option(None, "dictionary of all source languages (default: dict.LANG.txt of each)")
    target_dict: Optional[str] = option(None, "dictionary of all target languages (default: dict.LANG.txt of each)")
    lang_tok_style: str = option("multilingual", "language tokens: multilingual (__de__) or mbart ([de])")
    load_alignments: bool = option(False, "load the binarized alignments")
    left_pad_source: str = option("True", "pad the source on the left")
    left_pad_target: str = option("False", "pad the target on the left")
    max_source_positions: int = option(1024, "longest source sentence, in tokens")
    max_target_positions: int = option(1024, "longest target sentence, in tokens")
    upsample_primary: int = option(1, "how often train is repeated beside train1, train2, …")
    truncate_source: bool = option(False, "truncate the source to --max-source-positions")
    encoder_langtok: Optional[str] = option(None, "begin each source sentence with a language token: src or tgt")
    encoder_langtok_last: bool = option(
        False, "let the source's language token follow its end, as in NLLB's files with legacy_behaviour"
    )
    decoder_langtok: bool = option(False, "begin each target sentence with the target language's token")
    lang_tok_replacing_bos_eos: bool = option(False, "put language tokens in the place of the sentences' bos and eos")
    enable_lang_ids: bool = option(False, "give the model each sentence's language ids, where it takes them")
    enable_reservsed_directions_shared_datasets: bool = option(False, "share data sets between reversed directions")
    extra_data: Optional[str] = option(None, "a dictionary of further kinds of data to their directories")
    extra_lang_pairs: Optional[str] = option(None, "a dictionary of these kinds to their comma-separated pairs")
    fixed_dictionary: Optional[str] = option(None, "one dictionary for all languages")
    langtoks_specs: str = option("main", "comma-separated kinds of data that have language tokens of their own")
    langtoks: Optional[str] = option(
        None,
        "a dictionary of kinds of data to their (source, target) language tokens, such as {'main': ('src', 'tgt')}",
    )
    sampling_weights_from_file: Optional[str] = option(None, "a JSON file with such a dictionary as --sampling-weights")
    sampling_weights: Optional[str] = option(
        None, "a dictionary of the shares of the pairs, such as {'main:en-de': 0.7, 'main:en-ro': 0.3}"
    )
    virtual_data_size: Optional[int] = option(None, "sentences in a pass over the data, where pairs are sampled")
