"""The objects that an administrator of home creates for the bridge's volumes."""
