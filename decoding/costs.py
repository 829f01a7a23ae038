"""What a forward costs by its width, measured on the device: the ground on which drafts are worth their tokens."""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass

from decoding.forward import EagerForward, Feed, PackedForward

_WIDTHS = (1, 8, 64)
_PREFIX = 128
_REPEATS = 2


@dataclass(frozen=True)
class CostCurve:
    """Seconds of a forward over ``widths`` new tokens; in between and beyond, straight lines."""

    widths: tuple[int, ...]
    seconds: tuple[float, ...]

    def __call__(self, width: int) -> float:
        """Return the seconds of a forward over ``width`` new tokens."""
        at = min(max(bisect_left(self.widths, width), 1), len(self.widths) - 1)
        (left, right), (low, high) = self.widths[at - 1 : at + 1], self.seconds[at - 1 : at + 1]
        return low + (high - low) * (width - left) / (right - left)

    def slope(self, width: int) -> float:
        """Return the seconds that one more token costs in a forward of about ``width`` tokens."""
        return (self(2 * width) - self(width)) / width


def measure_costs(
    forward: PackedForward | EagerForward, widths: tuple[int, ...] = _WIDTHS, prefix: int = _PREFIX
) -> CostCurve:
    """Time forwards of growing width after ``prefix`` tokens, all through the head, in slot 0, which must be free.

    The best of a few, made non-decreasing.
    """
    forward([Feed(0, 0, [0] * prefix, [prefix - 1])])
    seconds: list[float] = []
    for width in widths:
        feed = Feed(0, prefix, [0] * width, list(range(width)))
        forward([feed])  # the first of a shape sets things up
        best = min(_seconds(forward, feed) for _ in range(_REPEATS))
        seconds.append(max([best, *seconds[-1:]]))
    return CostCurve(widths, tuple(seconds))


def _seconds(forward: PackedForward | EagerForward, feed: Feed) -> float:
    started = time.perf_counter()
    forward([feed]).argmax(-1).tolist()  # the result on the host: on a device, the end of the work
    return time.perf_counter() - started
