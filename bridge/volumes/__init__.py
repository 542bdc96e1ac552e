"""`bridge volume`: copies and moves the data of PersistentVolumeClaims between nodes."""
