"""The layout of image archives."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

from e2e.clusters.image_archives import Entry, Image, layer_bytes, write_archive

BASE = (Entry("bin"), Entry("bin/tool", content=b"#!"), Entry("bin/t", 0o777, link="/bin/tool"))
TOP = (Entry("data", 0o644, b"x"), Entry("data-2", link="data", hard=True), Entry("up", 0o1777))
IMAGES = [
    Image(("example.org/base:1", "example.org/alias:1"), (BASE,), command=("sh",)),
    Image(("example.org/app:1",), (BASE, TOP), ("/bin/tool",), ("run",), user="1:1"),
]


def _read(path: Path) -> tuple[list[dict[str, object]], dict[str, bytes]]:
    with tarfile.open(path) as archive:
        members = archive.getmembers()
        assert len({member.name for member in members}) == len(members)
        contents = {}
        for member in members:
            file = archive.extractfile(member)
            assert file is not None
            contents[member.name] = file.read()
    return json.loads(contents["manifest.json"]), contents


def test_every_image_has_its_names_config_and_layers_from_the_lowest_up(tmp_path: Path) -> None:
    write_archive(tmp_path / "images.tar", IMAGES)
    manifest, contents = _read(tmp_path / "images.tar")
    assert [entry["RepoTags"] for entry in manifest] == [list(image.names) for image in IMAGES]
    for image, entry in zip(IMAGES, manifest, strict=True):
        layers = entry["Layers"]
        assert isinstance(layers, list)
        config = json.loads(contents[str(entry["Config"])])
        digests = [f"sha256:{hashlib.sha256(contents[layer]).hexdigest()}" for layer in layers]
        assert config["rootfs"]["diff_ids"] == digests
        wanted = [layer_bytes(x) for x in image.layers if not isinstance(x, Path)]
        assert [contents[layer] for layer in layers] == wanted
    assert config["config"]["Entrypoint"] == ["/bin/tool"]
    assert config["config"]["User"] == "1:1"


def test_a_layer_can_be_a_file(tmp_path: Path) -> None:
    layer = tmp_path / "layer.tar"
    layer.write_bytes(layer_bytes(BASE))
    write_archive(tmp_path / "images.tar", [Image(("of-a-file",), (layer, TOP))])
    manifest, contents = _read(tmp_path / "images.tar")
    layers = manifest[0]["Layers"]
    assert isinstance(layers, list)
    assert [contents[it] for it in layers] == [layer_bytes(BASE), layer_bytes(TOP)]


def test_a_config_is_named_after_its_content(tmp_path: Path) -> None:
    write_archive(tmp_path / "images.tar", IMAGES)
    manifest, contents = _read(tmp_path / "images.tar")
    for entry in manifest:
        name = str(entry["Config"])
        assert name == f"{hashlib.sha256(contents[name]).hexdigest()}.json"


def test_a_layer_keeps_kinds_modes_and_links(tmp_path: Path) -> None:
    (tmp_path / "layer.tar").write_bytes(layer_bytes((*BASE, *TOP)))
    with tarfile.open(tmp_path / "layer.tar") as layer:
        found = {member.name: member for member in layer}
    assert found["bin"].isdir()
    assert found["bin/tool"].isreg()
    assert found["bin/tool"].mode == 0o755
    assert found["bin/t"].issym()
    assert found["bin/t"].linkname == "/bin/tool"
    assert found["data-2"].islnk()
    assert found["up"].mode == 0o1777


def test_the_same_images_make_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one.tar", "two.tar"):
        write_archive(tmp_path / name, IMAGES)
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
