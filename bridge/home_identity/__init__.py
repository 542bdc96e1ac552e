"""The bridge's identity at home: the virtual node, by a certificate that home signed, or its own
account. `node_certificate` obtains and renews the certificate, `identity_selection` decides."""
