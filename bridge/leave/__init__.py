"""`bridge leave`: removes a virtual node and everything its bridge created from both clusters.

`leave_procedure` is the order of the steps. `home_inventory` and `remote_cleanup` find what exists
in each cluster, `home_cleanup` and `remote_cleanup` delete it, `eviction` drains the node before
that, and `leave_summary` describes it to the user.
"""
