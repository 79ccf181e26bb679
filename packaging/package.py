"""Makes what people install, from a binary that packaging/link_portable.py linked: an archive, a .deb, a wheel, an image.

Every byte follows from the commit: times are those of the commit, names are sorted, owners are root. Two builds give the same files.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUMMARY = "A native inference engine for DeepSeek-V4"
SONAME = "libdsv4.so." + re.search(r"^#define DSV4_ABI (\d+)$", (ROOT / "include" / "dsv4.h").read_text(), re.MULTILINE)[1]
VERSION = re.search(r"project\(dsv4 VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
# What the image needs beside the binary, from this machine's Debian: the C library, the loader, certificates.
# NVIDIA's tools look for /etc/debian_version before they put the driver's libraries where Debian's loader finds them.
IMAGE_FILES = ["/etc/debian_version", "/lib64/ld-linux-x86-64.so.2", *(f"/lib/x86_64-linux-gnu/{name}" for name in (
    "libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libresolv.so.2", "libnss_dns.so.2", "libnss_files.so.2"))]


def output_of(*command) -> str:
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True, cwd=ROOT).stdout


class Tree:
    """Files below an install prefix: name to (bytes, mode)."""

    def __init__(self, binary: Path, library: Path) -> None:
        self.library = library.read_bytes()
        self.cuda = " cuda" in output_of(binary, "version")
        self.files: dict[str, tuple[bytes, int]] = {"bin/dsv4": (binary.read_bytes(), 0o755)}
        for path in sorted((ROOT / "models" / "tiny").rglob("*")):
            if path.is_file():
                self.add(f"share/dsv4/{path.relative_to(ROOT).as_posix()}", path.read_bytes())
        self.add(f"lib/{SONAME}", self.library)
        self.links = {"lib/libdsv4.so": SONAME}  # For -ldsv4.
        self.add("lib/pkgconfig/dsv4.pc", ("prefix=${pcfiledir}/../..\n\n" f"Name: dsv4\nDescription: {SUMMARY}\nVersion: {VERSION}\n"
                                           "Cflags: -I${prefix}/include\nLibs: -L${prefix}/lib -ldsv4\n").encode())
        self.add("include/dsv4.h", (ROOT / "include" / "dsv4.h").read_bytes())
        for path in sorted((ROOT / "examples").iterdir()):
            self.add(f"share/doc/dsv4/examples/{path.name}", path.read_bytes())
        self.add("share/doc/dsv4/README.md", (ROOT / "README.md").read_bytes())
        self.add("share/doc/dsv4/LICENSE", (ROOT / "LICENSE").read_bytes())
        self.add("share/doc/dsv4/THIRD-PARTY", third_party_licences(self.cuda))
        commands = re.findall(r"^  (\w+) {3,}\S", output_of(binary, "help").split("Subcommands:")[1], re.MULTILINE)
        for command in ["", *commands]:
            page = output_of(binary, "man", *([command] if command else []))
            name = f"dsv4-{command}" if command else "dsv4"
            self.add(f"share/man/man1/{name}.1.gz", gzip.compress(page.encode(), mtime=0))
        for shell, name in (("bash", "bash-completion/completions/dsv4"), ("zsh", "zsh/vendor-completions/_dsv4"),
                            ("fish", "fish/vendor_completions.d/dsv4.fish")):
            self.add(f"share/{name}", output_of(binary, "completion", shell).encode())

    def add(self, name: str, data: bytes, mode: int = 0o644) -> None:
        self.files[name] = (data, mode)


def third_party_licences(cuda: bool) -> bytes:
    """Debian's copyright files of what is linked in, and where to read NVIDIA's licence for its run time."""
    packages = ["libfmt-dev", "libutf8proc-dev", "libpcre2-dev", "libxxhash-dev", "libexpected-dev", "nlohmann-json3-dev",
                "libcli11-dev", "libedit-dev", "libbsd-dev", "libmd-dev", "libtinfo6", "libboost1.81-dev", "libssl-dev",
                "libcurl4-openssl-dev", "prometheus-cpp-dev", "libstdc++-12-dev", "libjs-marked", "libjs-katex", "fonts-katex", "node-highlight.js"]
    parts = []
    for package in packages:
        path = Path("/usr/share/doc", package, "copyright")
        if not path.exists():
            raise SystemExit(f"package: {path}: no such file; the licence of what is linked in must travel with it")
        parts.append(f"==== {package} ====\n{path.read_text(errors='replace')}")
    if cuda:
        parts.append("==== CUDA run time ====\nThe static CUDA run time (cudart) is linked in: Copyright NVIDIA Corporation, under the\n"
                     "End User License Agreement of the CUDA Toolkit, https://docs.nvidia.com/cuda/eula/\n")
    return "\n".join(parts).encode()


def tar_of(files: dict[str, tuple[bytes, int]], epoch: int, prefix: str = "", links: dict[str, str] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        folders: set[str] = set()
        for name in sorted({*files, *(links or {})}):
            parts = (prefix + name).split("/")
            for i in range(1, len(parts)):
                if (folder := "/".join(parts[:i])) not in folders:
                    folders.add(folder)
                    entry = tarfile.TarInfo(folder)
                    entry.type, entry.mode, entry.mtime = tarfile.DIRTYPE, 0o755, epoch
                    tar.addfile(entry)
            entry = tarfile.TarInfo(prefix + name)
            entry.mtime = epoch
            if links and name in links:
                entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, links[name], 0o777
                tar.addfile(entry)
            else:
                data, entry.mode = files[name]
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def write_archive(tree: Tree, output: Path, version: str, epoch: int) -> Path:
    path = output / f"dsv4-{version}-linux-x86_64{'-cuda' if tree.cuda else ''}.tar.zst"
    data = tar_of(tree.files, epoch, prefix=f"dsv4-{version}/", links=tree.links)
    path.write_bytes(subprocess.run(["zstd", "-q", "-12", "-c", "--single-thread"], input=data, capture_output=True, check=True).stdout)
    return path


def write_deb(tree: Tree, output: Path, version: str, epoch: int) -> Path:
    version += "+cuda" if tree.cuda else ""  # Newer than the one without, so that it replaces it.
    path = output / f"dsv4_{version}_amd64.deb"
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "root"
        files = {f"usr/{name}": entry for name, entry in tree.files.items()}
        service = (ROOT / "deploy" / "dsv4.service").read_text().replace("/usr/local/bin/", "/usr/bin/")
        # Nobody has written keys before the first start, which answers this machine alone.
        service = re.sub(r"^LoadCredential=keys:.*\n", "#\\g<0>", service, flags=re.MULTILINE).replace(" --api-key-file %d/keys", "")
        files["lib/systemd/system/dsv4.service"] = (service.encode(), 0o644)
        # The small model, until the file names another: what the unit starts must be there.
        settings = (ROOT / "deploy" / "serve.env").read_text()
        settings = re.sub(r"^DSV4_MODEL=.*$", "DSV4_MODEL=/usr/share/dsv4/models/tiny", settings, flags=re.MULTILINE)
        files["etc/dsv4/serve.env"] = (settings.encode(), 0o644)
        size = sum(len(data) for data, _ in files.values()) // 1024
        control = (f"Package: dsv4\nVersion: {version}\nArchitecture: amd64\nMaintainer: dsv4 maintainers\nInstalled-Size: {size}\n"
                   f"Depends: libc6 (>= 2.28), ca-certificates\nSection: science\nPriority: optional\nDescription: {SUMMARY}\n"
                   " Chat, an OpenAI- and Anthropic-compatible server, and tools that find out why\n a deployment misbehaves.\n")
        kept = {"DEBIAN/control": (control.encode(), 0o644), "DEBIAN/conffiles": (b"/etc/dsv4/serve.env\n", 0o644),
                "DEBIAN/triggers": (b"activate-noawait ldconfig\n", 0o644)}
        for name, (data, mode) in {**files, **kept}.items():
            target = root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            target.chmod(mode)
        for name, to in tree.links.items():
            (root / "usr" / name).symlink_to(to)
        for folder in [root, *root.rglob("*")]:
            if folder.is_dir():
                folder.chmod(0o755)
        subprocess.run(["dpkg-deb", "--root-owner-group", "--uniform-compression", "-Zxz", "--build", str(root), str(path)], check=True,
                       stdout=subprocess.DEVNULL, env=os.environ | {"SOURCE_DATE_EPOCH": str(epoch)})
    return path


def write_wheel(tree: Tree, output: Path, version: str, epoch: int) -> Path:
    """The binary as a script, the small model as data: `pip install` puts both below one prefix, where the binary looks. The Python package
    has its library beside it."""
    tag = "py3-none-manylinux_2_28_x86_64"
    path = output / f"dsv4-{version}-{tag}.whl"
    info = f"dsv4-{version}.dist-info"
    entries: dict[str, tuple[bytes, int]] = {}
    for source in sorted((ROOT / "python" / "dsv4").iterdir()):
        if source.suffix == ".py" or source.name == "py.typed":
            entries[f"dsv4/{source.name}"] = (source.read_bytes(), 0o644)
    entries["dsv4/libdsv4.so"] = (tree.library, 0o755)
    for name, entry in tree.files.items():
        if name.startswith(("lib/", "include/")):
            continue
        folder = "scripts/dsv4" if name == "bin/dsv4" else f"data/{name}"
        entries[f"dsv4-{version}.data/{folder}"] = entry
    readme = (ROOT / "README.md").read_text()
    entries[f"{info}/METADATA"] = ((f"Metadata-Version: 2.1\nName: dsv4\nVersion: {version}\nSummary: {SUMMARY}\nLicense: Apache-2.0\n"
                                    f"Requires-Python: >=3.10\nDescription-Content-Type: text/markdown\n\n{readme}").encode(), 0o644)
    entries[f"{info}/WHEEL"] = (f"Wheel-Version: 1.0\nGenerator: dsv4 packaging\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(), 0o644)

    def digest(data: bytes) -> str:
        return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()

    record = "".join(f"{name},{digest(data)},{len(data)}\n" for name, (data, _) in sorted(entries.items())) + f"{info}/RECORD,,\n"
    entries[f"{info}/RECORD"] = (record.encode(), 0o644)
    time = datetime.fromtimestamp(max(epoch, 315532800), UTC).timetuple()[:6]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for name, (data, mode) in sorted(entries.items()):
            entry = zipfile.ZipInfo(name, time)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
    return path


def write_image(tree: Tree, output: Path, version: str, epoch: int) -> Path:
    """An OCI image as an archive that docker load, podman load and skopeo take; made without a daemon."""
    version += "-cuda" if tree.cuda else ""
    path = output / f"dsv4-{version}-oci.tar"
    files = {f"usr/{name}": entry for name, entry in tree.files.items() if not name.startswith(("lib/", "include/"))}
    for name in IMAGE_FILES:
        files[name.lstrip("/")] = (Path(name).resolve().read_bytes(), 0o644 if name.startswith("/etc/") else 0o755)
    certificates = Path("/etc/ssl/certs/ca-certificates.crt")
    if certificates.exists():
        files["etc/ssl/certs/ca-certificates.crt"] = (certificates.read_bytes(), 0o644)
    files["etc/passwd"] = (b"dsv4:x:1000:1000::/var/lib/dsv4:/\n", 0o644)
    layer = tar_of(files, epoch)
    packed = gzip.compress(layer, mtime=0)
    created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    config = json.dumps({
        "created": created, "architecture": "amd64", "os": "linux",
        "config": {"Entrypoint": ["/usr/bin/dsv4"], "Cmd": ["serve", "--host", "0.0.0.0"], "ExposedPorts": {"8000/tcp": {}},
                   "Env": ["PATH=/usr/bin", "HOME=/var/lib/dsv4", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"],
                   "Labels": {"org.opencontainers.image.title": "dsv4", "org.opencontainers.image.version": version}},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
        "history": [{"created": created, "created_by": "./dev package"}]}).encode()

    def about(data: bytes, kind: str) -> dict:
        return {"mediaType": kind, "digest": "sha256:" + hashlib.sha256(data).hexdigest(), "size": len(data)}

    manifest = json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                           "config": about(config, "application/vnd.oci.image.config.v1+json"),
                           "layers": [about(packed, "application/vnd.oci.image.layer.v1.tar+gzip")]}).encode()
    entry = about(manifest, "application/vnd.oci.image.manifest.v1+json")
    entry["annotations"] = {"org.opencontainers.image.ref.name": version, "io.containerd.image.name": f"localhost/dsv4:{version}"}
    blobs = {f"blobs/sha256/{hashlib.sha256(data).hexdigest()}": (data, 0o644) for data in (packed, config, manifest)}
    path.write_bytes(tar_of({**blobs, "oci-layout": (b'{"imageLayoutVersion":"1.0.0"}', 0o644),
                             "index.json": (json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode(), 0o644)}, epoch))
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary", type=Path)
    parser.add_argument("library", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    epoch = int(output_of("git", "log", "-1", "--format=%ct"))
    tree = Tree(arguments.binary.resolve(), arguments.library.resolve())
    shutil.rmtree(arguments.output, ignore_errors=True)
    arguments.output.mkdir(parents=True)
    for write in (write_archive, write_deb, write_wheel, write_image):
        path = write(tree, arguments.output, VERSION, epoch)
        print(f"{path.stat().st_size / 1e6:6.1f} MB  {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}  {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
