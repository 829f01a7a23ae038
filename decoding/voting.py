"""Several programs for one request, and a vote on the documents they make: different programs may be one edit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from decoding.decoder import Edit, EditRequest, SpliceDecoder

_SUMS = ("forwards", "decoded", "copied", "forced", "fed", "heads", "drafted", "accepted", "broken_utf8", "wall_s")


class VotingDecoder:
    """Samples programs for each request and returns the document that most of them resolve to.

    A tie goes to the document with the likeliest program. Programs cut by a limit have no vote; if none is complete the
    likeliest of them is returned. ``confidence`` is the share of all samples that the document got. The costs of all
    samples are added up; a prompt is computed once where its samples share a batch.

    Args:
        decoder: with a temperature above 0; a ``batch_size`` of at least ``samples`` shares forwards and prompts.
        samples: programs for each request.
    """

    def __init__(self, decoder: SpliceDecoder, samples: int = 8) -> None:
        if samples < 2:
            raise ValueError(f"samples={samples}: a vote needs at least 2")
        if decoder.chooser.temperature <= 0:
            raise ValueError("temperature=0 gives the same program every time: a vote needs a temperature above 0")
        self.decoder, self.encoder, self.samples = decoder, decoder.encoder, samples

    def stream(self, requests: Iterable[tuple[int, EditRequest]]) -> Iterator[tuple[int, Edit]]:
        """Decode numbered requests; yield each with its number once all its samples are in."""
        ballots: dict[int, list[Edit]] = defaultdict(list)
        samples = (
            (number * self.samples + sample, request) for number, request in requests for sample in range(self.samples)
        )
        for sample, edit in self.decoder.stream(samples):
            number = sample // self.samples
            ballots[number].append(edit)
            if len(ballots[number]) == self.samples:
                yield number, vote(ballots.pop(number))


def vote(edits: list[Edit]) -> Edit:
    """Return the likeliest edit of the document that most of ``edits`` made, with the costs of all of them."""
    votes: dict[str | None, list[Edit]] = defaultdict(list)
    for edit in edits:
        votes[edit.text].append(edit)
    cut = votes.pop(None, [])
    ranked = [(len(group), max(edit.confidence for edit in group), group) for group in votes.values()]
    _, _, group = max(ranked, key=lambda entry: entry[:2]) if ranked else (0, 0.0, cut)
    best = max(group, key=lambda edit: edit.confidence)
    sums = {name: sum(getattr(edit.stats, name) for edit in edits) for name in _SUMS}
    return replace(best, stats=replace(best.stats, **sums), confidence=len(group) / len(edits) if ranked else 0.0)
