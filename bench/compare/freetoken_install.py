"""FreeToken in a virtual environment of its own: from PyPI, or from wheels where there is no network."""

from __future__ import annotations

import re
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

from engine_process import EngineError

REQUIREMENTS = Path(__file__).with_name("freetoken_requirements.txt")
LINES_OF_PIP = 10


def pinned_version(requirements: Path = REQUIREMENTS) -> str:
    found = re.findall(r"^freetoken==(\S+)$", requirements.read_text(), flags=re.MULTILINE)
    if len(found) != 1:
        raise EngineError(f"{requirements}: {len(found)} lines freetoken==VERSION, wanted 1")
    return found[0]


def wheels_in(folder: Path, version: str) -> list[Path]:
    """All wheels of a folder, if FreeToken's is the one that is wanted."""
    wheels = sorted(folder.glob("*.whl"))
    found = [wheel.name for wheel in wheels if wheel.name.startswith("freetoken-")]
    if not found:
        raise EngineError(f"{folder}: no wheel freetoken-{version}-*.whl among {len(wheels)} wheels")
    wrong = [name for name in found if name.split("-")[1] != version]
    if wrong:
        raise EngineError(f"{folder}: {', '.join(wrong)}, wanted version {version} (of {REQUIREMENTS.name})")
    return wheels


def install(folder: Path, wheels: Path | None) -> Path:
    """The Python of the environment in `folder`, which is made unless it is there. With `wheels`, what these do not bring is that of the
    Python that runs this: PyTorch, say, in whatever version it is there."""
    version = pinned_version()
    python, stamp = folder / "bin" / "python", folder / "installed"
    wanted = f"freetoken {version} from {wheels.resolve() if wheels else 'PyPI'}\n"
    if not (stamp.exists() and stamp.read_text() == wanted):
        found = wheels_in(wheels, version) if wheels else []
        shutil.rmtree(folder, ignore_errors=True)
        # If Python came without ensurepip, its own pip still unpacks wheels.
        venv.create(folder, with_pip=wheels is None, system_site_packages=wheels is not None)
        if wheels:
            packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
            # The Python that runs this may be of an environment too, which a new one does not look into.
            (packages / "of_the_parent.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages()))
            _pip(sys.executable, "install", "--no-index", "--no-deps", "--target", packages, *found)
        else:
            _pip(python, "install", "-r", REQUIREMENTS)
        stamp.write_text(wanted)
    check_version(python, version)
    return python


def check_version(python: Path, wanted: str) -> None:
    """Versions that the environment really has."""
    code = "from importlib.metadata import version; print(version('freetoken'))"
    told = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    if told.returncode:
        raise EngineError(f"{python}: no freetoken in its environment: {last_lines(told.stderr, 1)}")
    if told.stdout.strip() != wanted:
        raise EngineError(f"{python}: freetoken {told.stdout.strip()} in its environment, wanted {wanted}")


def unmet(python: Path) -> list[str]:
    """Packages that FreeToken asks for and does not have, in pip's words."""
    told = subprocess.run([python, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    if told.stderr and not told.stdout:
        return [f"pip check failed: {last_lines(told.stderr, 1)}"]
    return [line for line in told.stdout.splitlines() if line.startswith("freetoken ")]


def last_lines(text: str, count: int) -> str:
    return "\n".join(text.strip().splitlines()[-count:])


def _pip(python: Path | str, command: str, *arguments: str | Path) -> None:
    done = subprocess.run([python, "-m", "pip", command, "--quiet", "--disable-pip-version-check", *arguments], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise EngineError(f"pip could not install FreeToken:\n{last_lines(done.stdout, LINES_OF_PIP)}")
