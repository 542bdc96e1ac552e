"""Installs a bridge into home's cluster, and finds and removes such an installation.

- `names` describes the installation and names its objects; `manifests` and `webhook_manifests`
  render them from `pod_template`.
- `self_contained_kubeconfig` builds the kubeconfig for the Secret; `apply` applies the objects and
  `rollout` waits for them.
- `discovery` finds an installation, `uninstall` removes it, and `remote_kubeconfig` chooses the
  kubeconfig of a node's remote; `kubeconfig_validation` guards kubeconfigs read from a cluster.

A running bridge imports none of this.
"""
