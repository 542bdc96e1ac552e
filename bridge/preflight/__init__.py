"""What is checked before anything is made: both clusters can be used as the bridge will use them.

Here belong checks that only read, and the facts that they find. A check that fails raises
`PreflightError`: one sentence that says what, where, and what to do next.
"""
