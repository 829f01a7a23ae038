"""A lock of a file, for folders that one process at a time may write."""

from __future__ import annotations

import fcntl
from typing import IO


def take_lock(file: IO) -> bool:
    """Lock an open file until it is closed or its process dies; return False where another process has the lock.

    On a file system without locks it is everybody's: as good as it gets.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True
