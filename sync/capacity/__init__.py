"""The capacity of the virtual node: what the remote can provide now (`remote_capacity`), and
whether remote pods wait for a node (`unschedulable_pods`).
"""
