"""Hostile callers of the bridge's listening ports: random requests, and what must be true of each.

`python -m tests.fuzz` sends 100,000 requests; `test_fuzz.py` some thousand. The listeners run in a
process of their own (`server_process.py`), so that its memory, descriptors, tasks and log are the
bridge's alone; `requests.py` generates, `client.py` sends, `judgement.py` decides, `run.py` joins
them. A request is determined by the seed and its number.
"""
