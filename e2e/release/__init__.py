"""`make release VERSION=…`: builds everything that a release publishes, into `dist/`.

The release is built from the commit that is checked out, never from uncommitted changes, and needs
no container engine, registry of images or root. `python -m e2e.release` has the commands:

- `build` builds the artefacts, `SHA256SUMS` and an unsigned SLSA provenance.
- `verify` installs and runs the artefacts as a user would.
- `reproduce` builds twice, in different folders, and compares every file byte by byte.
- `sign` signs checksums and provenance with cosign, keyless; `--dry-run` prints the commands.
- `lock` updates `locks/`.

Guarantees: every input is named by its hash (`locks/`, the commit), or the build fails. Two builds
of
one commit by the same tools are equal: times are those of the commit, members of archives are in a
fixed order. Nothing is published.
"""
