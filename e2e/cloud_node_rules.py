"""The rule by which cloud controller managers delete Nodes.

It is MonitorNodes of k8s.io/cloud-provider, controllers/nodelifecycle/node_lifecycle_controller.go:
a Node that is not Ready is deleted if its cloud answers that the machine does not exist, and stays
if the cloud answers with an error. A cloud finds the machine by the Node's provider id, or without
one by the Node's name.
"""

from __future__ import annotations

from e2e.kubectl import Json

#: The clouds by the scheme of their ids. An id of another scheme is an error to all but ``azure``
#: (MapToAWSInstanceID of cloud-provider-aws, splitProviderID of cloud-provider-gcp), to which the
#: machine exists and is unmanaged (IsNodeUnmanagedByProviderID of cloud-provider-azure).
CLOUDS = ("aws", "gce", "azure")


def deletes(cloud: str, node: Json) -> bool:
    """Whether the controller of the cloud deletes the Node, which is none of its machines."""
    ready: Json = next(
        (each for each in node["status"]["conditions"] if each["type"] == "Ready"), {}
    )
    if ready.get("status") == "True":
        return False
    scheme = node["spec"].get("providerID", "").partition("://")[0]
    return scheme in ("", cloud)
