"""The memory of the writes that the bridge delays if they repeat."""

from __future__ import annotations

import gc
import pickle

from sync.base.repeated_writes import RepeatedWrites


def kept_bytes() -> int:
    """The size of all `RepeatedWrites` of the process."""
    gc.collect()
    return sum(len(pickle.dumps(kept)) for kept in gc.get_objects() if type(kept) is RepeatedWrites)
