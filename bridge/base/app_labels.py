"""The recommended labels by which the bridge's own objects at home are found.

https://kubernetes.io/docs/concepts/overview/working-with-objects/common-labels/
"""

from __future__ import annotations

NAME_LABEL, INSTANCE_LABEL = "app.kubernetes.io/name", "app.kubernetes.io/instance"
#: The value of `NAME_LABEL` on every object that an installation creates.
APP = "cluster-bridge"
