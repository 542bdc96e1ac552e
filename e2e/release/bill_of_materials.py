"""The bill of materials (SBOM) of the image and of the plugin, in CycloneDX 1.6, per architecture.

It has the bridge, every Python package with its version, and every package of Debian with its hash.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib import metadata

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from e2e.release import image_roots
from e2e.release.debian_packages import NUMBER, Package
from e2e.release.errors import ReleaseError
from e2e.release.image_roots import Roots

#: Of the identifiers of all bills, which follow from the content.
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "cluster-bridge.io")


def bill(root: Roots, packages: Sequence[Package], version: str, epoch: int) -> str:
    """The bill as JSON.

    :raises ReleaseError: it contradicts CycloneDX's schema.
    """
    architecture = root.architecture.name
    product = Component(
        name="cluster-bridge",
        version=version,
        type=ComponentType.CONTAINER,
        bom_ref=f"cluster-bridge@{version}",
        licenses=[LicenseExpression("Apache-2.0")],
    )
    parts = [
        *_python_packages(root),
        *(_debian_package(it, architecture) for it in packages),
    ]
    about = BomMetaData(component=product, timestamp=datetime.fromtimestamp(epoch, UTC))
    identity = uuid.uuid5(_NAMESPACE, f"{version} {epoch} {[str(it.purl) for it in parts]}")
    made = Bom(components=parts, metadata=about, serial_number=identity)
    made.register_dependency(product, parts)
    text: str = JsonV1Dot6(made).output_as_string(indent=1) + "\n"
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if problem is not None:
        raise ReleaseError(f"the bill of materials for {architecture} is invalid: {problem}")
    return text


def _python_packages(root: Roots) -> Iterator[Component]:
    folders = [str(part / image_roots.PACKAGES) for part in (root.dependencies, root.bridge)]
    for distribution in sorted(metadata.distributions(path=folders), key=lambda it: it.name):
        name = re.sub(r"[-_.]+", "-", distribution.name).lower()
        url = PackageURL("pypi", name=name, version=distribution.version)
        fields = distribution.metadata.json
        expression, text = fields.get("license_expression"), fields.get("license")
        licenses: list[LicenseExpression | DisjunctiveLicense] = []
        if isinstance(expression, str):
            licenses.append(LicenseExpression(expression))
        elif isinstance(text, str) and "\n" not in text:
            licenses.append(DisjunctiveLicense(name=text))
        yield Component(
            name=name,
            version=distribution.version,
            type=ComponentType.LIBRARY,
            bom_ref=str(url),
            purl=url,
            licenses=licenses,
        )


def _debian_package(package: Package, architecture: str) -> Component:
    own = "all" if package.path.endswith("_all.deb") else architecture
    url = PackageURL(
        "deb",
        "debian",
        package.name,
        package.version,
        {"arch": own, "distro": f"debian-{NUMBER}"},
    )
    return Component(
        name=package.name,
        version=package.version,
        type=ComponentType.LIBRARY,
        bom_ref=str(url),
        purl=url,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=package.sha256)],
    )
