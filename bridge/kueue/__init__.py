"""Kueue at home: the process part of the admission check, and manifests of queues.

`check_process` runs `sync.kueue.fits_controller` where home has Kueue; `queue_manifests` and
`queue_command` print ResourceFlavors and queues for virtual nodes (`bridge kueue flavors`).
"""
