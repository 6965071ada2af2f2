"""Translate lines with a folder of CTranslate2: no torch, fairseq or transformers.

    python translate.py SERVED/de --from en --to de < in.txt > out.txt

A line is treated as `mtmoe translate` treats it. docs/guides/deploy.md says how the folder is made.
"""

import argparse
import json
import re
import sys
import unicodedata
from pathlib import Path

import ctranslate2
import sentencepiece

INVISIBLE = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\ufeff]")
SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？।؟])\s*")


class Translator:
    """A translator from or into several languages that `mtmoe export-hf` gave Marian's tokenizer."""

    def __init__(self, folder, compute_type="default", threads=1):
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        self.room = settings["model_max_length"] - 2  # tokens beside the language and the end
        self.codes = set(settings["additional_special_tokens"])
        self.language_at_source, _ = settings["fairseq_mtmoe"]["langtoks"]  # src, tgt or none
        self.pieces_of_source = sentencepiece.SentencePieceProcessor(str(folder / "source.spm"))
        self.pieces_of_target = sentencepiece.SentencePieceProcessor(str(folder / "target.spm"))
        self.model = ctranslate2.Translator(str(folder), compute_type=compute_type, intra_threads=threads)

    def parts(self, line):
        """Return the pieces of a line; of its sentences, if it is too long; an empty list if it is empty."""
        text = " ".join(unicodedata.normalize("NFC", INVISIBLE.sub("", line)).split())
        pieces = self.pieces_of_source.encode(text, out_type=str)
        if len(pieces) <= self.room:
            return [pieces] if pieces else []
        sentences = [part for part in SENTENCE_END.split(text) if part]
        return self.pieces_of_source.encode(sentences, out_type=str)

    def translate(self, lines, source, target, beam=5):
        """Return a translation of each line."""
        code = f">>{target}<<"
        first = {"src": [f">>{source}<<"], "tgt": [code]}.get(self.language_at_source, [])
        parts = [self.parts(line) for line in lines]
        rows = [[*first, *pieces, "</s>"] for pieces_of_line in parts for pieces in pieces_of_line]
        results = iter(self.model.translate_batch(
            rows, target_prefix=[[code]] * len(rows), beam_size=beam,
            max_decoding_length=min(200, self.room), max_batch_size=2000, batch_type="tokens",
        ))  # fmt: skip
        translations = []
        for pieces_of_line in parts:
            written = [self.text(next(results).hypotheses[0][1:]) for _ in pieces_of_line]
            translations.append(" ".join(written))
        return translations

    def text(self, pieces):
        """Return the text of a translation, without codes of languages; ⁇ is an unknown piece."""
        words = [piece for piece in pieces if piece not in self.codes]
        return self.pieces_of_target.decode(words).replace(" ⁇ ", "⁇")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--from", dest="source", required=True)
    parser.add_argument("--to", dest="target", required=True)
    parser.add_argument("--beam", type=int, default=5)
    args = parser.parse_args()
    translations = Translator(args.folder).translate(list(sys.stdin), args.source, args.target, args.beam)
    sys.stdout.writelines(f"{translation}\n" for translation in translations)
