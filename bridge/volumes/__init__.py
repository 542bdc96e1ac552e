"""`bridge volume copy`: copies the files of a PersistentVolumeClaim to another one."""
