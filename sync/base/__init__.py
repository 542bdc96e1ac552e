"""Small parts that every other package of `sync` uses and that know no Kubernetes object."""
