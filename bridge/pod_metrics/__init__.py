"""What the virtual node's pods use, told as a kubelet tells it.

Nothing is asked of the remote unless somebody asks the virtual node; what is answered concerns the
pods of this node alone, in home's names.
"""
