"""The kubelet HTTP API of the virtual node: what home's API server asks on port 10250.

Here belong who may call (`auth`, `reviews`), what a path and a query mean (`routing`, `names`,
`options`), and what is done about it: logs (`logs`), exec, attach and port-forward (`streams`,
`tunnel`), the pods and the health of the node (`listings`); and the server that puts them together
(`server`), its certificate (`certificate`), and what it asks of its caller (`directory`).

Nothing here knows how pods are translated: the caller's `PodDirectory` says which remote pod a home
pod is. Nothing here decides about objects.
"""
