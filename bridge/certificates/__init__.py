"""The kubelet API's serving certificate and home's client CA.

A certificate is self-signed, read from files (`serving_certificate`), or signed by home (`csr`).
`tls_key_pair` loads a pair into TLS, `x509_builder` creates and parses X.509, `cert_dir` stores
certificates signed by home, and `home_client_ca` watches the CA that authenticates home's API
server.
"""
