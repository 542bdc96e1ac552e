"""What the remote offers now, aggregated from its nodes, pods and ResourceQuotas."""
