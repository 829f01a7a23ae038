"""How many processes to start."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Return the cores that this process may run on; where the system does not say, all there are."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
