"""The capacity that the virtual node offers: requests, free resources of nodes, and quotas."""
