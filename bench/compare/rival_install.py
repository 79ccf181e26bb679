"""A rival in a virtual environment of its own: from PyPI, or from wheels where there is no network."""

from __future__ import annotations

import re
import shutil
import site
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from engine_process import EngineError

LINES_OF_PIP = 10


@dataclass(frozen=True)
class Rival:
    name: str
    package: str  # In PyPI, and in the names of wheels.
    requirements: Path

    def pinned_version(self) -> str:
        found = re.findall(rf"^{self.package}==(\S+)$", self.requirements.read_text(), flags=re.MULTILINE)
        if len(found) != 1:
            raise EngineError(f"{self.requirements}: {len(found)} lines {self.package}==VERSION, wanted 1")
        return found[0]

    def wheels_in(self, folder: Path, version: str) -> list[Path]:
        """All wheels of a folder, if the rival's is the one that is wanted."""
        wheels = sorted(folder.glob("*.whl"))
        found = [wheel.name for wheel in wheels if wheel.name.startswith(f"{self.package}-")]
        if not found:
            raise EngineError(f"{folder}: no wheel {self.package}-{version}-*.whl among {len(wheels)} wheels")
        wrong = [name for name in found if name.split("-")[1] != version]
        if wrong:
            raise EngineError(f"{folder}: {', '.join(wrong)}, wanted version {version} (of {self.requirements.name})")
        return wheels


FREETOKEN = Rival("FreeToken", "freetoken", Path(__file__).with_name("freetoken_requirements.txt"))
VLLM = Rival("vLLM", "vllm", Path(__file__).with_name("vllm_requirements.txt"))


def install(rival: Rival, folder: Path, wheels: Path | None) -> Path:
    """The Python of the environment in `folder`, which is made unless it is there. With `wheels`, what these do not bring is that of the
    Python that runs this: PyTorch, say, in whatever version it is there."""
    version = rival.pinned_version()
    python, stamp = folder / "bin" / "python", folder / "installed"
    wanted = f"{rival.package} {version} from {wheels.resolve() if wheels else 'PyPI'}\n"
    if not (stamp.exists() and stamp.read_text() == wanted):
        found = rival.wheels_in(wheels, version) if wheels else []
        shutil.rmtree(folder, ignore_errors=True)
        # If Python came without ensurepip, its own pip still unpacks wheels.
        venv.create(folder, with_pip=wheels is None, system_site_packages=wheels is not None)
        if wheels:
            packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
            # The Python that runs this may be of an environment too, which a new one does not look into.
            (packages / "of_the_parent.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages()))
            _pip(rival, sys.executable, "install", "--no-index", "--no-deps", "--target", packages, *found)
        else:
            _pip(rival, python, "install", "-r", rival.requirements)
        stamp.write_text(wanted)
    check_version(rival, python, version)
    return python


def check_version(rival: Rival, python: Path, wanted: str) -> None:
    """Versions that the environment really has."""
    code = f"from importlib.metadata import version; print(version('{rival.package}'))"
    told = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    if told.returncode:
        raise EngineError(f"{python}: no {rival.package} in its environment: {last_lines(told.stderr, 1)}")
    if told.stdout.strip() != wanted:
        raise EngineError(f"{python}: {rival.package} {told.stdout.strip()} in its environment, wanted {wanted}")


def unmet(rival: Rival, python: Path) -> list[str]:
    """Packages that the rival asks for and does not have, in pip's words."""
    told = subprocess.run([python, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    if told.stderr and not told.stdout:
        return [f"pip check failed: {last_lines(told.stderr, 1)}"]
    return [line for line in told.stdout.splitlines() if line.startswith(f"{rival.package} ")]


def last_lines(text: str, count: int) -> str:
    return "\n".join(text.strip().splitlines()[-count:])


def _pip(rival: Rival, python: Path | str, command: str, *arguments: str | Path) -> None:
    done = subprocess.run([python, "-m", "pip", command, "--quiet", "--disable-pip-version-check", *arguments], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise EngineError(f"pip could not install {rival.name}:\n{last_lines(done.stdout, LINES_OF_PIP)}")
