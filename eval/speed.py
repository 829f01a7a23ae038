"""Timing of decoders on the same edits, in one loop, with one clock; gold answers are forced, so quality is no part.

Every system decodes each case with a model that computes all it would compute; its choices are then replaced by those
of the system's gold answer. The clock starts after the prompt (all but its last id) has been fed, which every decoder
has to do; end-to-end time is taken beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from data_prep.oracle import build_oracle
from data_prep.pairs import EditPair
from decoding.baselines import TextDecoder
from decoding.costs import CostCurve, measure_costs
from decoding.decoder import Decoder, EditRequest, SpliceDecoder
from decoding.drafts import Drafter
from decoding.encoder import ProgramEncoder
from decoding.engine import Sequence
from decoding.formats import FORMATS, FormatError
from decoding.forward import PackedForward
from decoding.grammar import split_lines
from eval.speedup import SpeedupCurve, bound

_KERNEL_WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_KERNEL_PREFIX = 1024  # the paper's (section 4.1)
_WARM_UP = 8  # ids decoded once before the clock runs: the first forwards set things up


@dataclass(frozen=True)
class System:
    """A way of decoding: ``make(batch_size)`` builds it, ``gold(pair)`` is the ids it should write.

    ``kind`` is ar, lookup, paper, splice or format; ``gold`` raises FormatError where the format cannot say the edit.
    """

    name: str
    kind: str
    make: Callable[[int], Decoder]
    gold: Callable[[EditPair], list[int]]


def systems_of(
    model: PreTrainedModel, encoder: ProgramEncoder, lookups: list[str], splices: list[str], backend: str | None
) -> list[System]:
    """Return autoregression, prompt lookup at every setting, other formats, the paper's decoder, and ours.

    ``lookups`` are written ``longest:count:first`` or ``longest:count:recent``.

    Raises:
        ValueError: a lookup that cannot be read.
    """
    settings = {text: _lookup(text) for text in lookups}
    costs = measure_costs(PackedForward(model, 1))

    def text(format: str, lookup: tuple[int, int, bool] | None = None) -> Callable[[int], Decoder]:
        return lambda batch: TextDecoder(model, encoder, format, lookup=lookup, batch_size=batch, backend=backend)

    def splice(kind: str, feeding: str = "fused", drafts: bool = True) -> Callable[[int], Decoder]:
        # The paper's decoder is eager, and one edit at a time.
        own = {"backend": "eager", "feeding": feeding} if feeding == "paper" else {"backend": backend}
        return lambda batch: SpliceDecoder(
            model, encoder.tokenizer, encoder=encoder, splice=kind, drafts=drafts, costs=costs, batch_size=batch, **own
        )

    def written(format: str) -> Callable[[EditPair], list[int]]:
        end = [encoder.table.end_of_sequence]
        return lambda pair: encoder.text.encode(FORMATS[format].write(pair.before, pair.after)) + end

    def program(kind: str) -> Callable[[EditPair], list[int]]:
        def gold(pair: EditPair) -> list[int]:
            segments = encoder.segments(build_oracle(pair.before, pair.after), pair.before, kind)
            return [index for segment in segments for index in segment.ids][:-1]  # a program's end ends it

        return gold

    out = [System("autoregressive", "ar", text("full"), written("full"))]
    out += [System(f"lookup {name}", "lookup", text("full", s), written("full")) for name, s in settings.items()]
    best_guess = max(settings.values(), key=lambda s: s[1], default=None)
    for format in ("search_replace", "unified_diff"):
        out.append(System(format, "format", text(format), written(format)))
        if best_guess:
            out.append(System(f"{format} + lookup", "format", text(format, best_guess), written(format)))
    out.append(System("paper's decoder", "paper", splice("full", "paper"), program("full")))
    for kind in splices:
        out.append(System(f"fused, splice={kind}", "fused", splice(kind, drafts=False), program(kind)))
        out.append(System(f"drafted, splice={kind}", "splice", splice(kind), program(kind)))
    return out


def _lookup(text: str) -> tuple[int, int, bool]:
    parts = text.split(":")
    if len(parts) != 3 or not parts[0].isdigit() or not parts[1].isdigit() or parts[2] not in ("first", "recent"):
        raise ValueError(f"lookup {text!r}: write longest:count:first or longest:count:recent, e.g. 3:64:first")
    return int(parts[0]), int(parts[1]), parts[2] == "recent"


def time_one_by_one(
    systems: list[System], pairs: list[EditPair], ar_limit: int, done: Callable[[str, int], bool]
) -> Iterator[dict[str, Any]]:
    """Yield a row for every case and system, batch 1. Systems take turns case by case, so that drift hits all alike.

    Autoregression runs on the first ``ar_limit`` cases alone. ``done(system, case)`` skips what an earlier call timed.
    """
    decoders: dict[str, Decoder] = {}
    for case, pair in enumerate(pairs):
        turn = case % len(systems)
        for system in systems[turn:] + systems[:turn]:
            if (system.kind == "ar" and case >= ar_limit) or done(system.name, case):
                continue
            gold = _gold(system, pair)
            row = {"system": system.name, "kind": system.kind, "case": case, "id": pair.id, "batch_size": 1}
            if gold is None:
                yield row | {"inexpressible": True}
                continue
            if system.name not in decoders:
                decoders[system.name] = _timed_apart(system.make(1))
                _run(decoders[system.name], [(case, pair, gold[:_WARM_UP])])
            started = time.perf_counter()
            ((sequence, text),) = _run(decoders[system.name], [(case, pair, gold)])
            total = time.perf_counter() - started
            if text != pair.after:
                raise RuntimeError(f"{system.name} did not reproduce the gold document of {pair.id}")
            stats = asdict(sequence.stats)
            kept = ("prompt_tokens", "forwards", "fed", "heads", "decoded", "drafted", "accepted", "wall_s")
            yield row | {key: stats[key] for key in kept} | {"written": len(sequence.ids), "total_s": total}


def time_batch(system: System, pairs: list[EditPair], batch_size: int) -> dict[str, Any] | None:
    """Return edits per second over all ``pairs``, ``batch_size`` in flight; None if a pair is not expressible.

    ``wall_s`` leaves the prompts' own forwards out, ``total_s`` has them.
    """
    items = [(case, pair, _gold(system, pair)) for case, pair in enumerate(pairs)]
    if any(gold is None for _, _, gold in items):
        return None
    decoder = _timed_apart(system.make(batch_size))
    _run(decoder, [(case, pair, gold[:_WARM_UP]) for case, pair, gold in items[:1]])
    decoder.engine.prefill_s = 0.0
    started = time.perf_counter()
    texts = [text for _, text in _run(decoder, items)]
    total = time.perf_counter() - started
    if sorted(texts) != sorted(pair.after for pair in pairs):
        raise RuntimeError(f"{system.name} did not reproduce the gold documents at batch {batch_size}")
    wall = total - decoder.engine.prefill_s
    return {"system": system.name, "batch_size": batch_size, "edits": len(pairs), "wall_s": wall, "total_s": total}


def _timed_apart(decoder: Decoder) -> Decoder:
    decoder.engine.prefill_apart = True
    if isinstance(decoder, SpliceDecoder) and decoder.drafts:
        decoder.engine.costs = decoder.costs
    return decoder


def _gold(system: System, pair: EditPair) -> list[int] | None:
    try:
        return system.gold(pair)
    except FormatError:
        return None


def _run(decoder: Decoder, items: list[tuple[int, EditPair, list[int]]]) -> list[tuple[Sequence, str | None]]:
    documents = {case: pair.before for case, pair, _ in items}

    def opened() -> Iterator[Sequence]:
        for case, pair, gold in items:
            sequence = decoder.open(EditRequest(pair.instruction, pair.before), case)
            sequence.script, sequence.limit = gold, len(gold)
            yield sequence

    finished = decoder.engine.run(opened())
    return [(sequence, decoder.close(sequence, documents[sequence.number]).text) for sequence in finished]


# The paper's bound


def forward_costs(model: PreTrainedModel) -> CostCurve:
    """Return seconds of one forward over N new tokens after a prefix of 1024 (T_PP(N) of paper section 4.1)."""
    return measure_costs(PackedForward(model, 1), _KERNEL_WIDTHS, _KERNEL_PREFIX)


def speedup(kernel: CostCurve) -> SpeedupCurve:
    """Return s(N) where N tokens one by one cost N forwards of one, without the cache's growth (paper section 4.1)."""
    one = kernel.seconds[0]
    return SpeedupCurve(kernel.widths, tuple(w * one / s for w, s in zip(kernel.widths, kernel.seconds, strict=True)))


def exact_bound(encoder: ProgramEncoder, pairs: list[EditPair], curve: SpeedupCurve) -> float:
    """Return bnd_exact over the copy spans of the pairs' oracles (paper equation 3)."""
    total = sum(len(encoder.text.encode(pair.after)) for pair in pairs)
    spans = []
    for pair in pairs:
        lines = split_lines(pair.before)
        for op in build_oracle(pair.before, pair.after).copies:
            spans.append(len(encoder.text.encode("\n".join(lines[op.first - 1 : op.last]))))
    return bound(total, spans, curve)


# What constraints cost


def constraint_costs(system: System, pairs: list[EditPair]) -> dict[str, float]:
    """Return seconds per forward of the state machine, of the masked choice beyond a plain one, and of drafting.

    The state machine is timed on the choices of the gold programs, one by one; the masked choice, with its
    log-probabilities, on logits of the model's size for as many choices as a forward opens, against argmax alone.
    """
    decoder = _timed_apart(system.make(1))
    fsm_s = draft_s = 0.0
    decisions, forwards = [], 0
    for case, pair in enumerate(pairs):
        gold = system.gold(pair)
        sequence = decoder.open(EditRequest(pair.instruction, pair.before), case)
        grammar = sequence.grammar
        started = time.perf_counter()
        _, state = grammar.forced(grammar.start)
        while not state.ended:
            decisions.append(decoder.engine.decision(sequence, state))
            _, state = grammar.forced(grammar.advance(state, gold[state.length]))
        fsm_s += time.perf_counter() - started
        sequence.script, sequence.limit = gold, len(gold)
        sequence.drafter = timed = _TimedDrafter(sequence.drafter)
        list(decoder.engine.run([sequence]))
        forwards += sequence.stats.forwards
        draft_s += timed.seconds
    per_forward = len(decisions) / forwards
    together = max(round(per_forward), 1)
    groups = [decisions[at : at + together] for at in range(0, min(len(decisions), 400) - together, together)]
    size = decoder.model.get_output_embeddings().weight.shape[0]
    logits = torch.randn(together, size, device=decoder.model.device)
    masked = _seconds(lambda: [decoder.chooser(logits, group) for group in groups])
    plain = _seconds(lambda: [logits.argmax(-1).tolist() for _ in groups])
    return {
        "state_machine_s": fsm_s / forwards,
        "masked_choice_s": (masked - plain) / len(groups),
        "draft_s": draft_s / forwards,
        "choices_per_forward": per_forward,
    }


class _TimedDrafter:
    """A drafter, and how long it took."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter, self.seconds = drafter, 0.0

    def extend(self, *arguments) -> None:
        started = time.perf_counter()
        self._drafter.extend(*arguments)
        self.seconds += time.perf_counter() - started


def _seconds(function: Callable[[], Any]) -> float:
    function()
    started = time.perf_counter()
    function()
    return time.perf_counter() - started
