"""What the tables are computed from: settings, corpora of oracles, tokenizer, model. Each loads on first use."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from data_prep.build import OracleConfig, prepare_corpora
from data_prep.counts import copied_spans
from data_prep.pairs import EditPair
from data_prep.prepared import OracleRow, fingerprint
from decoding.commandline import UserError
from decoding.console import track
from decoding.grammar import parse
from eval.endpoint import checked_endpoint

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from decoding.encoder import ProgramEncoder
    from decoding.tokens import TextTokenizer
    from eval.paper_tables.fixed_costs import FixedCosts
    from eval.paper_tables.kernel import KernelTimes
    from eval.speed import System

_TITLES = {
    "probeedit": "ProbeEdit",
    "hevalfix-py": "HEvalFix-Py",
    "hevalfix-js": "HEvalFix-JS",
    "hevalfix-java": "HEvalFix-Java",
    "hevalfix-go": "HEvalFix-Go",
    "hevalfix-cpp": "HEvalFix-C++",
    "hevalfix-rust": "HEvalFix-Rust",
}
_OF_PAPER = {"probeedit", "hevalfix-py", "hevalfix-js"}


@dataclass
class PaperConfig:
    """Which tables, on what, with which model. The keys of eval/paper.py."""

    table: list[str] = field(default_factory=lambda: ["all"])  # numbers of the paper's tables; all that can be made
    corpora: list[str] = field(default_factory=lambda: ["probeedit", "hevalfix-py", "hevalfix-js"])  # as build_oracles
    jsonl: list[str] = field(default_factory=list)  # files of the jsonl corpus (instruction, before, after)
    data_dir: str | None = None  # folder with humanevalpack/*.jsonl; default CAD_DATA_DIR, else the hub
    limit: int | None = None  # at most so many pairs of each corpus
    tokenizer: str = "Qwen/Qwen2.5-Coder-7B-Instruct"  # counts the tokens: hub name, folder, or GGUF file
    tokenizers: list[str] = field(
        default_factory=lambda: [
            "Qwen/Qwen2.5-Coder-7B-Instruct",
            "deepseek-ai/deepseek-coder-6.7b-instruct",
            "codellama/CodeLlama-7b-Instruct-hf",
        ]
    )  # of Table 18
    seed: int = 0  # of data, noise, fuzz and bootstrap
    trials: int = 5  # perturbations of each case (Tables 8 and 14)
    fuzz: int = 10_000  # strings of the escape's fuzz test (Appendix I)
    model: str | None = None  # for Tables 5, 11, 16 and 24, and more figures in 2, 17, 19 and 20: as tokenizer
    random_weights: bool = False  # make the model from its configuration alone: time does not depend on weights
    cases: int = 20  # edits of each corpus that a model decodes
    ar_cases: int = 3  # of these, how many plain autoregression decodes; ratios to it are over these
    kernel_trials: int = 7  # trials of each length of the kernel benchmark; the median counts
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 on an accelerator, float32 on a CPU
    device: str | None = None  # default the accelerator if there is one
    backend: Literal["packed", "graphs", "eager"] | None = None  # default by device; see decoding/forward.py
    runs: list[str] = field(default_factory=list)  # run folders of trained selectors (Tables 6, 7, 22 and 23)
    endpoint: str | None = None  # OpenAI-compatible API of Table 25, e.g. https://api.openai.com/v1
    endpoint_model: list[str] = field(default_factory=list)  # models to ask there; the key is OPENAI_API_KEY
    out: str = "results/paper"  # where to write

    def __post_init__(self) -> None:
        if not self.out:
            raise ValueError("out=: name a folder")
        for key in ("trials", "fuzz", "cases", "ar_cases", "kernel_trials"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key}={getattr(self, key)}: must be at least 1")
        self.oracles()  # says what is wrong with the corpora
        if self.endpoint:
            checked_endpoint(self.endpoint)

    def oracles(self) -> OracleConfig:
        """Return the settings of data preparation."""
        return OracleConfig(
            corpora=self.corpora, jsonl=self.jsonl, data_dir=self.data_dir, limit=self.limit, seed=self.seed
        )


@dataclass(frozen=True)
class Corpus:
    """The oracles of one corpus; ``title`` is its name in the paper, ``faults`` are the rows that were refused."""

    name: str
    title: str
    rows: list[OracleRow]
    faults: list[dict] = field(default_factory=list)
    over_limit: int = 0

    @cached_property
    def fingerprint(self) -> str:
        """Return what identifies the rows."""
        return fingerprint(self.rows)

    @property
    def refused(self) -> dict[str, int]:
        """Return what was left out, by reason."""
        counts = Counter(fault["reason"] for fault in self.faults)
        return dict(counts) | ({"over limit": self.over_limit} if self.over_limit else {})

    @property
    def left_out(self) -> str:
        """Return the same as text."""
        return ", ".join(f"{count} {reason}" for reason, count in sorted(self.refused.items()))

    @property
    def held_out(self) -> Corpus:
        """Return the held-out part."""
        return Corpus(self.name, self.title, [row for row in self.rows if row.split == "heldout"])

    @property
    def source(self) -> dict[str, str]:
        """Return what a table that rests on this corpus says of it."""
        return {self.name: f"n={len(self.rows)} {self.fingerprint[:16]}"}


class Missing(Exception):
    """An input that a table needs and the settings do not name: the table is left out, and the report says why."""


class Inputs:
    """The inputs of all tables of one call, each loaded once."""

    def __init__(self, config: PaperConfig) -> None:
        self.config = config
        self._tokens: dict[tuple[str, str], list] = {}
        self._decoded: dict[str, dict[str, list[dict[str, Any]]]] = {}

    @cached_property
    def corpora(self) -> list[Corpus]:
        """The corpora asked for, in the order asked for."""
        prepared = prepare_corpora(self.config.oracles(), track)
        corpora = [
            Corpus(name, _TITLES.get(name, name), corpus.rows, corpus.faults, corpus.over_limit)
            for name, corpus in prepared.items()
        ]
        for corpus in corpora:
            if not corpus.rows:
                raise UserError(f"{corpus.name} has no edit that can be used: {corpus.left_out or 'it is empty'}")
        return corpora

    @property
    def loaded(self) -> list[Corpus]:
        """The corpora, if a table needed them."""
        return self.corpora if "corpora" in self.__dict__ else []

    @property
    def with_pooled(self) -> list[Corpus]:
        """The corpora, and all of them as one where there are several."""
        return self.corpora + ([pooled(self.corpora)] if len(self.corpora) > 1 else [])

    @property
    def sources(self) -> dict[str, str]:
        """What a table that rests on all corpora says of them."""
        return {name: value for corpus in self.corpora for name, value in corpus.source.items()}

    def as_in_paper(self, name: str) -> bool:
        """Return whether a corpus (or ``pooled``) is what the paper measured, so that its figures stand beside ours."""
        if name == "pooled":
            return {corpus.name for corpus in self.corpora} == _OF_PAPER and all(map(self.as_in_paper, _OF_PAPER))
        return name in _OF_PAPER and name in self.config.corpora and self.config.limit is None

    @cached_property
    def kernel(self) -> KernelTimes:
        """The model's kernel times (Table 11), measured once for every table that needs s(N).

        Raises:
            Missing: no model is named, or its context is too short.
        """
        from eval.paper_tables.kernel import measure_kernel

        try:
            return measure_kernel(self.model, self.config.kernel_trials, self.config.backend)
        except ValueError as error:
            raise Missing(str(error)) from None

    @cached_property
    def fixed_costs(self) -> FixedCosts:
        """The model's fixed costs (Table 16).

        Raises:
            Missing: no model is named.
        """
        from eval.paper_tables.fixed_costs import measure_fixed_costs

        return measure_fixed_costs(self.model, self.encoder)

    @cached_property
    def _systems(self) -> list[System]:
        from eval.speed import systems_of

        try:
            systems = systems_of(self.model, self.encoder, [], ["none"], self.config.backend)
        except ValueError as error:
            raise Missing(str(error)) from None
        return [system for system in systems if system.kind in ("ar", "paper", "fused", "splice")]

    def decoded(self, corpus: Corpus) -> dict[str, list[dict[str, Any]]]:
        """Return rows of ``time_one_by_one`` by system, over the first held-out edits, forced to the gold; made once.

        Autoregression runs on the first ``ar_cases`` of them alone.

        Raises:
            Missing: no model is named.
        """
        from eval.speed import time_one_by_one

        if corpus.name not in self._decoded:
            systems = self._systems
            pairs = [
                EditPair(row.id, row.corpus, row.instruction, row.before, row.after, row.group, row.meta)
                for row in corpus.held_out.rows[: self.config.cases]
            ]
            ar_cases = min(self.config.ar_cases, len(pairs))
            timed = time_one_by_one(systems, pairs, ar_cases, lambda system, case: False)
            total = ar_cases + (len(systems) - 1) * len(pairs)
            rows: dict[str, list[dict[str, Any]]] = {}
            for row in track(timed, f"decoding {corpus.title}", total=total):
                rows.setdefault(row["system"], []).append(row)
            self._decoded[corpus.name] = rows
        return self._decoded[corpus.name]

    @cached_property
    def text(self) -> TextTokenizer:
        """The tokenizer that counts."""
        from decoding.loading import load_text_tokenizer

        try:
            return load_text_tokenizer(self.config.tokenizer)
        except UserError as error:
            raise UserError(f"{error}; tokenizer=FOLDER names another") from None

    def tokens(self, corpus: Corpus) -> TokenCounts:
        """Return the token counts of a corpus; what was counted is kept, row by row.

        Raises:
            Missing: the corpus has no edit, or no token.
        """
        rows = [row for row in corpus.rows if (row.corpus, row.id) not in self._tokens]
        counted = count_tokens(rows, self.text)
        for row, *counts in zip(rows, counted.gold, counted.spans, counted.gens, strict=True):
            self._tokens[row.corpus, row.id] = counts
        if not corpus.rows:
            raise Missing(f"{corpus.title} has no edit in the part that it is about")
        found = TokenCounts(*map(list, zip(*(self._tokens[row.corpus, row.id] for row in corpus.rows), strict=True)))
        if not found.total:
            raise Missing(f"the edited documents of {corpus.title} have no token")
        return found

    @cached_property
    def model(self) -> PreTrainedModel:
        """The model that is timed and decodes.

        Raises:
            Missing: none is named.
        """
        import torch

        from decoding.loading import load_model

        config = self.config
        if config.model is None:
            raise Missing("it runs a model: name one with model=")
        dtype = None if config.dtype == "auto" else getattr(torch, config.dtype)
        return load_model(config.model, dtype=dtype, device=config.device, random_weights=config.random_weights)

    @cached_property
    def encoder(self) -> ProgramEncoder:
        """The model's program encoder."""
        from decoding.loading import load_encoder

        if self.config.model is None:
            raise Missing("it runs a model: name one with model=")
        return load_encoder(self.config.model)

    @property
    def model_source(self) -> dict[str, str]:
        """What a table that ran the model says of it."""
        model = self.model
        import torch

        device = (
            torch.cuda.get_device_name() if model.device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
        )
        weights = ", random weights" if self.config.random_weights else ""
        return {"model": f"{self.config.model}{weights}, {str(model.dtype).removeprefix('torch.')}, {device}"}


def paper_size(model: str | None) -> str | None:
    """Return the size of Qwen2.5 that the paper measured and the model's name has, 1.5B or 7B, if any."""
    found = re.search(r"(?<![\d.])(1\.5|7)b(?![a-z\d])", (model or "").lower())
    return f"{found[1]}B" if found else None


def pooled(corpora: list[Corpus]) -> Corpus:
    """Return several corpora as one."""
    return Corpus("pooled", "Pooled", [row for corpus in corpora for row in corpus.rows])


@dataclass(frozen=True)
class TokenCounts:
    """Tokens of each edit: ``gold[i]`` of the edited document, ``spans[i]`` and ``gens[i]`` of each copy and gen.

    A copied span is encoded by itself, as one text; a gen is its content, without tags.
    """

    gold: list[int]
    spans: list[list[int]]
    gens: list[list[int]]

    @property
    def total(self) -> int:
        """T, the tokens of all gold documents."""
        return sum(self.gold)

    @property
    def copied(self) -> int:
        """T_copy, the tokens of all copied spans."""
        return sum(map(sum, self.spans))

    @property
    def all_spans(self) -> list[int]:
        """Tokens of every copied span of the corpus."""
        return [n for spans in self.spans for n in spans]


def count_tokens(rows: list[OracleRow], text: TextTokenizer) -> TokenCounts:
    """Count with a ``TextTokenizer``, without special tokens."""
    return TokenCounts(
        [len(text.encode(row.after)) for row in rows],
        [[len(text.encode(span)) for span in copied_spans(row)] for row in rows],
        [[len(text.encode(op.content)) for op in parse(row.program).gens] for row in rows],
    )
