"""`bridge dashboard`: a live page with all remotes, for a browser on this machine.

- `fleet_watch` watches the home cluster and queries the bridges; `pod_table` has the pods with the
  changes since any revision, and `history` the samples of the last hour.
- `live_stream` sends changes to a page, `pod_details` explains one pod, `page_responses` answers
  the requests, and `static/` is the page: plain modules without a build step.
- `loopback_server` serves the page to one user.

docs/how-to/dashboard.md describes the page.
"""
