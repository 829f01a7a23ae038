"""Which edits of the corpora are prepared, and which of these are held out.

In this order: duplicates are refused, the limit takes its share, whole groups are held out, training edits that leak
held-out ones are refused. Memory holds a few numbers for each edit, not the edits; ``hygiene`` says what it needs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from data_prep.hygiene import Progress, Refused, refuse_duplicates, refuse_leaks
from data_prep.rows import Joined, Picked

if TYPE_CHECKING:
    import numpy as np

    from data_prep.build import OracleConfig
    from data_prep.pairs import EditPair
    from data_prep.prepared import OracleRow

Remember = Callable[[str, Callable[[], Refused]], Refused]


@dataclass(frozen=True)
class Chosen:
    """The edits of a corpus that are prepared.

    Attributes:
        places: of these edits among all of the corpus, ascending.
        held_out: whether each of them is.
        faults: a row of rejected.jsonl for each edit that is a duplicate or leaks.
        over_limit: how many edits the limit left out.
    """

    places: np.ndarray
    held_out: np.ndarray
    faults: list[dict]
    over_limit: int


def choose_edits(
    edits: dict[str, Sequence[EditPair]],
    config: OracleConfig,
    elsewhere: Sequence[OracleRow] = (),
    progress: Progress = lambda it, _: it,
    remember: Remember = lambda _, find: find(),
) -> dict[str, Chosen]:
    """Return what is prepared of each corpus.

    Args:
        edits: the corpora.
        config: seed, limit, held-out share, what is refused, and the processes that search for it.
        elsewhere: held-out edits of other folders, which are not to leak either.
        progress: shows how far the search for near texts is.
        remember: called with "duplicates" or "leaks" and the search for them; returns what that finds.
    """
    import numpy as np

    hygiene, seed, workers = config.hygiene, config.seed, config.workers
    duplicates: Refused = {}
    if hygiene.near_duplicates:
        duplicates = remember("duplicates", lambda: refuse_duplicates(edits, hygiene, seed, progress, workers))
    places, scores = {}, {}
    for name, of_corpus in edits.items():
        usable = np.delete(np.arange(len(of_corpus)), list(duplicates.get(name, ())))
        places[name] = _within_limit(name, of_corpus, usable, config)
        scores[name] = _scores("split", name, Picked(of_corpus, places[name]), seed)
    out_of_family = _held_out(scores, config.heldout)
    held_out = {name: np.isin(scores[name], out_of_family[_family(name)]) for name in edits}
    leaks: Refused = {}
    if hygiene.drop_leaks:
        train = {name: Picked(edits[name], places[name][~held_out[name]]) for name in edits}
        held = Joined([*(Picked(edits[name], places[name][held_out[name]]) for name in edits), elsewhere])
        leaks = remember("leaks", lambda: refuse_leaks(train, held, hygiene, seed, progress, workers))
    chosen = {}
    for name, of_corpus in edits.items():
        of_train = np.flatnonzero(~held_out[name])
        leaking = of_train[list(leaks.get(name, ()))]
        faults = [*duplicates.get(name, {}).values(), *leaks.get(name, {}).values()]
        over_limit = len(of_corpus) - len(duplicates.get(name, ())) - len(places[name])
        left = np.delete(places[name], leaking), np.delete(held_out[name], leaking)
        chosen[name] = Chosen(*left, faults, over_limit)
    return chosen


def _within_limit(name: str, edits: Sequence[EditPair], places: np.ndarray, config: OracleConfig) -> np.ndarray:
    """The places of at most ``limit`` edits, in order; of the same problems in every language."""
    import numpy as np

    if config.limit is None or len(places) <= config.limit:
        return places
    order = np.argsort(_scores("limit", name, Picked(edits, places), config.seed), kind="stable")
    return np.sort(places[order[: config.limit]])


def _held_out(scores: dict[str, np.ndarray], share: float) -> dict[str, np.ndarray]:
    """Return, by family, the scores of whole groups whose edits come nearest to the held-out share of the family's.

    The groups are taken in their order; one so large that more would be amiss with it than without it is left out.
    """
    import numpy as np

    families: dict[str, list[np.ndarray]] = {}
    for name, of_corpus in scores.items():
        families.setdefault(_family(name), []).append(of_corpus)
    chosen = {}
    for family, parts in families.items():
        groups, sizes = np.unique(np.concatenate(parts), return_counts=True)
        wanted, taken = round(share * sizes.sum()), []
        for group, size in zip(groups, sizes.tolist(), strict=True):
            if size <= 2 * wanted:
                taken.append(group)
                wanted -= size
        chosen[family] = np.array(taken, groups.dtype)
    return chosen


def _family(name: str) -> str:
    """Corpora of one family share their groups: HumanEvalPack has the same problems in every language."""
    return "humaneval" if name.startswith("hevalfix") else name


def _scores(purpose: str, name: str, edits: Iterable[EditPair], seed: int) -> np.ndarray:
    """The places of the edits' groups in a random order that does not depend on which groups there are, as uint64."""
    import numpy as np

    start = f"{purpose}:{seed}:{_family(name)}:"
    hashes = (hashlib.sha256((start + edit.group).encode()).digest() for edit in edits)
    return np.fromiter((int.from_bytes(each[:8], "big") for each in hashes), dtype=np.uint64)
