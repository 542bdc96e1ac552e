"""The lifecycle of the pods on the virtual node.

`controller` turns changes into keys, `plan` decides (pure), `execution` carries out the decision.
Beside them: service account tokens, and what a kubelet would do (admission, eviction from lost
nodes).
"""
