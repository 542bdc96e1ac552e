"""The lifecycle of the pods on the virtual node.

`controller` turns changes into keys, `action_planner` decides (pure), `action_executor` carries out
the decision.
"""
