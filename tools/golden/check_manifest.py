"""tests/golden/manifest.json: every golden file with its hash, generator, seed and versions.

  python3 tools/golden/check_manifest.py            verifies the files against the manifest (needs no packages)
  python3 tools/golden/check_manifest.py --write    writes it after regenerating
"""

import argparse
import hashlib
import json
import platform
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "tests/golden"
_WRITTEN_BY_HAND = (".cc", ".h", ".py", ".md", "CMakeLists.txt", "manifest.json")


def _files() -> list[Path]:
    return sorted(p for p in ROOT.rglob("*") if p.is_file() and not p.name.endswith(_WRITTEN_BY_HAND))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _origin(path: Path) -> dict:
    import numpy

    from make_ops import SEED
    here = {"numpy": numpy.__version__, "python": platform.python_version()}
    name = path.relative_to(ROOT).as_posix()
    if name.startswith("v41/"):
        return {"generator": f"tools/golden/make_v41.py --oracle FILE {path.parent.name}",
                "seed": json.loads((path.parent / "golden.json").read_text())["seed"], "versions": here}
    if name.startswith("shared/"):
        return {"generator": "tools/golden/make_shared.py", "seed": json.loads((path.parent / "golden.json").read_text())["seed"],
                "versions": here}
    if not name.startswith("models/"):
        script = {"mistakes.json": "make_mistakes.py", "vectors.json": "make_vectors.py"}.get(name, "make_ops.py")
        return {"generator": f"tools/golden/{script}"} | ({"seed": SEED} if name.startswith("ops/") else {}) | {"versions": here}
    model = path.parent.name
    info = json.loads((path.parent / "golden.json").read_text())
    if model.startswith("tf_"):
        return {"generator": "tools/golden/make_transformers.py OUT", "seed": info["seed"], "versions": info["versions"]}
    return {"generator": f"tools/golden/make_release.py {model}", "seed": info["seed"], "versions": here}


def write() -> None:
    # An unchanged file keeps the name of its maker.
    old = json.loads((ROOT / "manifest.json").read_text())
    entries = {}
    for path in _files():
        name, digest = path.relative_to(ROOT).as_posix(), _sha256(path)
        same = old.get(name, {}).get("sha256") == digest
        entries[name] = old[name] if same else {"sha256": digest} | _origin(path)
    (ROOT / "manifest.json").write_text(json.dumps(entries, indent=1) + "\n")
    print(f"{len(entries)} files, {sum(p.stat().st_size for p in _files()) / 1e6:.1f} MB")


def check() -> list[str]:
    """Differences between the manifest and the files, one line each."""
    wanted = json.loads((ROOT / "manifest.json").read_text())
    found = {p.relative_to(ROOT).as_posix(): p for p in _files()}
    problems = [f"{name}: listed, but missing" for name in wanted if name not in found]
    problems += [f"{name}: not listed" for name in found if name not in wanted]
    for name, entry in wanted.items():
        if name in found and (got := _sha256(found[name])) != entry["sha256"]:
            problems.append(f"{name}: sha256 is {got}, the manifest has {entry['sha256']}")
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    if parser.parse_args().write:
        write()
        return
    problems = check()
    if problems:
        sys.exit("golden data does not match its manifest:\n" + "\n".join(problems))
    print("golden data matches its manifest")


if __name__ == "__main__":
    main()
