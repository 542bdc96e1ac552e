"""The API client and the controllers that keep two clusters in agreement.

Here belong: the API client, informers and their stores, work queues, and the controllers of pods,
copies, Events, Services, capacity and cleanup. The command line, the Node object and the kubelet
API belong to `bridge`, the rules that translate objects to `translators`.
"""
