"""A model that is loaded once and translates lines of text between any of its languages, without a data directory.

Search and spelling are those of `mtmoe evaluate`; sentences into several languages share batches, each with its own
language tokens and ids.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from fairseq.data import data_utils
from fairseq.dataclass.configs import FairseqConfig, GenerationConfig
from omegaconf import OmegaConf

from fairseq_mtmoe.evaluation import stored
from fairseq_mtmoe.evaluation.beam_search import BeamSearch
from fairseq_mtmoe.evaluation.first_words import first_words
from fairseq_mtmoe.evaluation.text_batches import Forms, Hypothesis, Row, Spelled, bits
from fairseq_mtmoe.evaluation.translator import Decoding


class TextTranslator:
    """Models (several are an ensemble), in the precision and on the device of `decoding`, which also says the search.

    Raises:
        UserError: a file is no checkpoint of a translator, or lacks what makes text of tokens; see `Forms` for `data`.
    """

    def __init__(self, checkpoints: Sequence[str], decoding: Decoding = Decoding(), data: str | None = None) -> None:  # noqa: B008 (frozen)
        self.decoding = decoding
        states = [stored.read(path) for path in checkpoints]
        self.forms = Forms(states[0], checkpoints[0], data)
        self._task = self.forms.task
        self._models: list[Any] = []
        self._load(states, checkpoints)
        self._searches = lru_cache(maxsize=4)(self._search)
        self._spellers = lru_cache(maxsize=None)(self._speller)

    @property
    def langs(self) -> list[str]:
        return self.forms.langs

    def translate(self, lines: Sequence[str], *, source: str, target: str, **search: Any) -> list[str]:
        """Return the translation of each line; an empty one of an empty line.

        `search`: fields of `Decoding` that are otherwise than the translator's, such as `beam`.

        Raises:
            UserError: a language is unknown, or a line has a sentence that is too long for the model.
        """
        decoding = replace(self.decoding, **search)
        self.forms.check(source, [target])
        group = self.forms.group(lines, source, [target], decoding)
        for number, batch in enumerate(group.batches):
            group.add(number, self.translate_batch(batch, decoding))
        return [hypotheses[0].text for hypotheses in group.finished(target)]

    def translate_batch(self, rows: Sequence[Row], decoding: Decoding, n_best: int = 1) -> list[list[Hypothesis]]:
        """Return the hypotheses of each row, the best first, at least one."""
        search = self._searches(decoding.beam, decoding.lenpen, decoding.max_len_a, decoding.max_len_b, n_best)
        sample = self._task.for_models(self.decoding.moved(self._sample(rows)), self._models)
        firsts = [self.forms.first_token(row.target) for row in rows]
        prefixes = None if self.forms.replaces_ends or None in firsts else sample["id"].new_tensor(firsts).unsqueeze(1)
        begins = firsts[0] if self.forms.replaces_ends else None
        _, end = self.forms.ends(rows[0].target)
        with first_words(self._models, end):
            outputs = search.generate(self._models, sample, prefix_tokens=prefixes, bos_token=begins)
        limits = search.limits(sample["net_input"]["src_lengths"]).tolist()
        return [
            [self._hypothesis(self._spellers(row.target), one, limit) for one in output]
            for row, output, limit in zip(rows, outputs, limits, strict=True)
        ]

    @staticmethod
    def _hypothesis(spell: Spelled, output: dict[str, torch.Tensor], limit: int) -> Hypothesis:
        tokens = output["tokens"]
        return Hypothesis(spell(tokens), bits(float(output["score"])), len(tokens), len(tokens) > limit)

    def _sample(self, rows: Sequence[Row]) -> dict[str, Any]:
        """A batch as fairseq's tasks collate it, of rows that are in order."""
        dictionary, left = self._task.source_dictionary, self._task.args.left_pad_source
        tokens = [torch.tensor(row.tokens) for row in rows]
        net_input = {
            "src_tokens": data_utils.collate_tokens(tokens, dictionary.pad(), dictionary.eos(), left_pad=left),
            "src_lengths": torch.tensor([len(row.tokens) for row in rows]),
        }
        ids = [self.forms.language_id(row.source) for row in rows]
        if None not in ids:
            net_input["src_lang_id"] = torch.tensor(ids).unsqueeze(1)
        tasks = torch.tensor([self._task.task_id(f"{row.source}-{row.target}") for row in rows])
        return {"id": torch.arange(len(rows)), "net_input": net_input, "task_ids": tasks}

    def _search(self, beam: int, lenpen: float, max_len_a: float, max_len_b: int, n_best: int) -> BeamSearch:
        generation = GenerationConfig(beam=beam, lenpen=lenpen, max_len_a=max_len_a, max_len_b=max_len_b)
        return BeamSearch(self._task.build_generator(self._models, generation), n_best=n_best)

    def _speller(self, target: str) -> Spelled:
        return self.forms.target(target).speller([self._task.target_dictionary.eos(), *self.forms.language_tokens])

    def _load(self, states: list[dict[str, Any]], paths: Sequence[str]) -> None:
        generation = GenerationConfig(beam=self.decoding.beam)
        while states:  # each is as large as its model
            model = stored.build_model(self._task, states[0], paths[len(self._models)])
            del states[0]
            stored.placed(model, self.decoding.fp16, self.decoding.bf16, self.decoding.use_cuda)
            model.prepare_for_inference_(OmegaConf.structured(FairseqConfig(generation=generation)))
            self._models.append(model)
