"""The virtual node: its Node object and its Lease.

Here belongs what makes home believe in the node and keeps that belief true: what a Node says
(`model`, pure), and the writing of it (`controller`, `lease`).
"""
