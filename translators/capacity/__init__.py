"""The arithmetic of what the virtual node offers: nodes, requests and ResourceQuotas."""
