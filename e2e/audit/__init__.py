"""An auditor of one virtual node: does the remote run what home says, and nothing else?

It reads only the two API servers, and says in words of its own what must be true: what it took
from the bridge's code it would believe too. The checks are functions of plain objects
(`pods`, `copies`, `foreign`, `history`), each tested with what it must find; `Auditor` reads the
clusters for them, and watches pods meanwhile, since what ran twice shows in no state afterwards.
"""

from e2e.audit.auditor import Auditor
from e2e.audit.findings import Finding, Kind

__all__ = ["Auditor", "Finding", "Kind"]
