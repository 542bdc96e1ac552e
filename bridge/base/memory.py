"""What the process does about its own memory: when Python looks for cycles, and what it gives back.

Objects are freed when the last reference to them goes; the collector is for cycles alone, of which
a pod leaves next to none. As Python sets it up it looks through all objects again and again while
caches fill: with 10,000 pods that is half of the time of filling them, in pauses of 0.2 s. So:

- `begin`, before the imports: rarer and larger steps.
- `settle`, after them: what was imported is never looked through again.
- `give_back`, while the bridge runs: a whole collection after much has gone. It empties Python's
  lists of objects to use again, each of which can keep a block of 1 MB from the system: after 5,000
  pods have come and gone, 165 MB are resident without it and 53 MB with it. (malloc's own trimming
  then finds nothing more, and the number of its arenas makes no difference.)
"""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import NoReturn

#: Objects more than before at which the newest are looked through; how often that is done before
#: those that were left are, and that before all are. Measured while caches fill with 10,000 pods of
#: 60 objects: 14 % of the time is the collector's, where it was 48 %, in steps of at most 5 ms.
#: Larger steps cost more (they leave the processor's cache) and make longer pauses. In a burst of
#: 1,000 pods and its end: 0.3 s of processor time where it was 0.7 s, the longest step 26 ms where
#: it was 75. All are looked through after 1.25 million objects more, which bounds what cycles keep.
THRESHOLDS = (5_000, 5, 50)
#: Seconds between looks at how much there is. A look takes 80 µs with 165 MB.
LOOK = 15.0
#: The part of what came that must have gone again: a whole collection costs what is left.
GONE = 0.5
#: Fewer objects than this, 5 MB of them, are not worth one.
FEW = 50_000


def begin() -> None:
    """To be called before most is imported."""
    gc.set_threshold(*THRESHOLDS)


def settle() -> None:
    """To be called when all is imported, and nothing else is there yet."""
    gc.freeze()


async def give_back() -> NoReturn:
    """Collects when half of all that came since the start has gone, until cancelled.

    A bridge at rest collects nothing.
    """
    least = most = sys.getallocatedblocks()
    while True:
        await asyncio.sleep(LOOK)
        now = sys.getallocatedblocks()
        if most - now > max(FEW, (most - least) * GONE):
            gc.collect()
            most = now
        most = max(most, now)
