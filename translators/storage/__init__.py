"""Translates storage: a home PersistentVolumeClaim that the bridge provisions becomes a PVC in the
remote, and a PersistentVolume at home that leads to it."""
