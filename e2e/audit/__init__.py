"""An auditor of one virtual node: does the remote run exactly what home specifies?

It reads only the two API servers, and its expectations are independent of the bridge's code, whose
errors it would share otherwise. The checks are pure functions of objects (`pod_pairs`,
`copied_objects`, `unmanaged_changes`, `pod_history`), each with tests; `Auditor` reads the clusters
for them, and watches pods meanwhile, since a later state does not show that a pod ran twice.
"""

from e2e.audit.auditor import Auditor
from e2e.audit.findings import Finding, Kind

__all__ = ["Auditor", "Finding", "Kind"]
