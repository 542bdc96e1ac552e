"""Hostile peers of the bridge, and what must be true of each exchange with them.

`python -m tests.fuzz` sends 100,000 random requests to the listening ports, and lets the bridge
make 20,000 exchanges with a hostile API server and with hostile relay agents; `test_fuzz.py` some
thousand and some hundred. The bridge's part runs in a process of its own, so that its memory,
descriptors, tasks, log and event loop belong to the bridge only (`process_state.py`).

- Listeners: `server_process.py` under test; `requests.py` generates, `client.py` sends,
  `judgement.py` decides, `run.py` joins them. The seed and its number determine a request.
- Clients: `client_process.py` under test; `remote_responses.py` and `agent_messages.py` have valid
  exchanges, which `mutation.py` changes and `hostile_peers.py` sends; `client_run.py` joins them.
  The seed and the request, which names its exchange, determine a response.
"""
