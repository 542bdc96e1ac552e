"""The lifecycle of the pods on the virtual node.

`pod_controller` turns changes into keys, `action_planner` decides (pure), `action_executor` carries
out the decision. The other modules serve these three; `service_account_tokens` has a controller of
its own.
"""
