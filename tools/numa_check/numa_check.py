"""Runs dsv4 on a virtual machine with two NUMA nodes and checks where its pages and threads are.

    python3 tools/numa_check/numa_check.py --kernel-package linux-image-*-cloud-amd64_*.deb

Wants qemu-system-x86, busybox-static, e2fsprogs and a Debian kernel package (`apt-get download
linux-image-cloud-amd64`'s dependency). Not part of any test: it takes a kernel and a minute. A virtual machine shows that the
policy reaches the pages; that interleaving is faster can only be seen on a machine with two memories."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULES = ["virtio", "virtio_ring", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci", "virtio_blk"]

# Runs as process 1 of the machine. Lines that begin with "@" are read by this script.
INIT = """#!/bin/sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
for module in MODULES; do insmod /modules/$module.ko; done
mount -t ext4 -o ro /dev/vda /model
export DSV4_MODEL=/model
answer() { /dsv4 --log-level info --threads 4 "$@" 2>&1; }
pages() {  # The pages of a running process by node: of the checkpoint, or of its large private memory.
  awk -v kind="$2" '
    { a = 0; b = 0; file = 0; for (i = 1; i <= NF; i++) { split($i, f, "="); if (f[1] == "N0") a = f[2]; if (f[1] == "N1") b = f[2]; if ($i ~ /safetensors/) file = 1 } }
    (kind == "file" && file) || (kind == "anon" && !file && /anon=/ && a + b > 1000) { x += a; y += b }
    END { print x + 0, y + 0 }' /proc/$1/numa_maps
}
look() {  # NAME KIND ARGUMENTS: what a run looks like from outside when it has read every weight.
  name=$1 kind=$2; shift 2
  /dsv4 --threads 4 "$@" >/dev/null 2>/log & pid=$!
  for second in $(seq 90); do
    sleep 1
    set -- $(pages $pid $kind)
    [ $(($1 + $2)) -gt 2500 ] && break
  done
  echo "@ $name pages $(pages $pid $kind)"
  for task in /proc/$pid/task/*; do echo "@ $name thread $(grep Cpus_allowed_list $task/status | cut -f2)"; done
  kill $pid; wait $pid 2>/dev/null
}
answer inspect | sed -n '/^numa/,$p' | sed 's/^/@ inspect /'
echo 3 >/proc/sys/vm/drop_caches
taskset 1 /dsv4 --numa off --threads 1 run --max-tokens 4 --temperature 0 hi >/dev/null 2>&1
answer --numa auto run --max-tokens 4 --temperature 0 hi | grep "weights' pages" | sed 's/^/@ warm /'
echo 3 >/proc/sys/vm/drop_caches
LONG="run --max-tokens 100000 --temperature 0 --raw hi"
look off file --numa off $LONG
echo 3 >/proc/sys/vm/drop_caches
look interleave file --numa interleave $LONG
look private anon --numa auto --weights synthetic:tiny,f32 $LONG
echo "@ end"
poweroff -f
"""


def initramfs(directory: Path, package: Path, binary: Path) -> Path:
    """A root file system in memory: the binary, its libraries, a shell, the drivers of the disk."""
    subprocess.run(["dpkg-deb", "-x", package, directory / "kernel"], check=True)
    root = directory / "root"
    for name in ("bin", "modules", "model", "proc", "sys", "dev"):
        (root / name).mkdir(parents=True)
    shutil.copy(shutil.which("busybox") or sys.exit("busybox-static is not installed"), root / "bin/busybox")
    (root / "bin/sh").symlink_to("busybox")
    for module in MODULES:
        shutil.copy(next((directory / "kernel").rglob(f"{module}.ko")), root / "modules")
    shutil.copy(binary, root / "dsv4")
    for library in re.findall(r"(/\S+) \(0x", subprocess.check_output(["ldd", binary], text=True)):
        target = root / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
    (root / "init").write_text(INIT.replace("MODULES", " ".join(MODULES)))
    (root / "init").chmod(0o755)
    image = directory / "initramfs"
    with image.open("wb") as file:
        names = "\n".join(str(path.relative_to(root)) for path in [root, *root.rglob("*")])
        subprocess.run(["busybox", "cpio", "-o", "-H", "newc"], cwd=root, input=names.encode(), stdout=file, check=True)
    return image


def boot(directory: Path, image: Path, model: Path, kvm: bool) -> list[str]:
    """Output of the machine in lines with "@"."""
    disk = directory / "disk"
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", model, disk, "64M"], check=True)
    kernel = next((directory / "kernel/boot").glob("vmlinuz-*"))
    accelerator = ["-enable-kvm", "-cpu", "host"] if kvm else ["-cpu", "max"]
    command = ["qemu-system-x86_64", *accelerator, "-m", "2G", "-smp", "4", "-nographic", "-no-reboot",
               "-object", "memory-backend-ram,size=1G,id=m0", "-object", "memory-backend-ram,size=1G,id=m1",
               "-numa", "node,nodeid=0,cpus=0-1,memdev=m0", "-numa", "node,nodeid=1,cpus=2-3,memdev=m1",
               "-kernel", kernel, "-initrd", image, "-append", "console=ttyS0 quiet panic=-1",
               "-drive", f"file={disk},format=raw,if=virtio,readonly=on"]
    try:
        output = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=900, check=False).stdout
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
    output = output.decode(errors="replace")
    lines = [line.strip()[2:] for line in output.splitlines() if line.startswith("@ ")]
    if "end" not in lines:
        sys.exit(f"the machine did not get to the end:\n{output[-4000:]}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel-package", type=Path, required=True)
    parser.add_argument("--binary", type=Path, default=ROOT / "build/release/dsv4")
    parser.add_argument("--model", type=Path, default=ROOT / "models/tiny")
    parser.add_argument("--kvm", action="store_true", help="much faster, where the host can")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        lines = boot(directory, initramfs(directory, options.kernel_package, options.binary), options.model,
                     options.kvm)
    print("\n".join(lines))

    def first_share(run: str) -> float:
        found = next(line.split() for line in lines if line.startswith(f"{run} pages"))
        first, second = int(found[2]), int(found[3])
        return first / (first + second) if first + second > 1000 else -1

    def threads(run: str) -> list[str]:
        return sorted(line.split()[2] for line in lines if line.startswith(f"{run} thread"))

    checks = {
        "inspect sees two nodes and advises interleaving": any("interleaving pays" in line and "yes" in line for line in lines),
        "pages that an earlier process left on one node are noticed": any(line.startswith("warm") and "100 % of" in line
                                                                          for line in lines),
        "a file's pages lie on both nodes in equal parts": 0.45 < first_share("interleave") < 0.55,
        "weights made in memory lie on both nodes": 0.3 < first_share("private") < 0.7,
        "the threads of a backend are on both nodes": {"0-1", "2-3"} <= set(threads("interleave")),
        "off leaves the threads alone": set(threads("off")) == {"0-3"},
    }
    for name, good in checks.items():
        print(f"{'ok  ' if good else 'FAIL'} {name}")
    sys.exit(0 if all(checks.values()) else 1)


if __name__ == "__main__":
    main()
