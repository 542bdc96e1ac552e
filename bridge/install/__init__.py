"""Installs a bridge into home's cluster, and finds and removes such an installation.

- `installation` describes the installation and names its objects; `installation_manifests` renders
  them from `pod_template`.
- `flattened_kubeconfig` builds the kubeconfig for the Secret; `server_side_apply` applies the
  objects and `rollout` waits for them.
- `installer` runs an installation with these, and `identity_approval` has the bridge be the node at
  home.
- `installation_lookup` finds an installation, `uninstall` removes it, `remote_kubeconfig_lookup`
  chooses the kubeconfig of a node's remote, and `untrusted_kubeconfig` validates kubeconfigs that
  were read from a cluster.

A running bridge imports none of this.
"""
