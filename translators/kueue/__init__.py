"""Kueue at home, with virtual nodes: which remote can hold a whole Workload, and what was promised.

`workload` reads Workloads of kueue.x-k8s.io/v1beta2 and computes the changes of their status;
`remote_choice` decides; `promises` computes the room that admitted Workloads do not use yet.
`sync.kueue` has the controller.
"""
