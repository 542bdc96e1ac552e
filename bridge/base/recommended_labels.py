"""The recommended labels of the objects that the bridge creates at home.

https://kubernetes.io/docs/concepts/overview/working-with-objects/common-labels/
"""

from __future__ import annotations

NAME_LABEL, INSTANCE_LABEL = "app.kubernetes.io/name", "app.kubernetes.io/instance"
#: Value of `NAME_LABEL` on every object that an installation creates.
APP = "cluster-bridge"
