"""`bridge dashboard`: a live page with all remotes, for a browser on this machine.

- `fleet_watch` watches home and queries the bridges; `pod_table` has the pods with the changes
  since any revision, `history` the samples of the last hour, and `metrics_reading` reads what the
  samples are made of.
- `live_stream` sends changes to a page, `pod_details` explains one pod, `page_responses` answers
  the requests, and `static/` is the page: plain modules without a build step.
- `loopback_server` serves the page to one user.

docs/how-to/dashboard.md describes the page.
"""
