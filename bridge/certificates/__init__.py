"""The kubelet API's serving certificate and home's client CA.

A certificate is self-signed, read from files (`serving_certificate`), or signed by home (`csr`).
`signed_certificate` gets any certificate of the node from home, with the requests of
`signing_request` and the approvals of `csr_approval`, and keeps it in the files of `cert_dir`, or
for the replicas of an installation in the Secret of `secret_store`. `tls_key_pair` loads
a pair into TLS, `x509_builder` creates and parses X.509, and `home_client_ca` watches the CA that
authenticates home's API server.
"""
