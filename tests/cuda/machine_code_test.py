"""Checks the machine code of kernels that no machine has run. The sm_100a objects must hold Blackwell's block-scaled matrix steps, in
every form, and the instructions around them.

Exit status 77 when there is no disassembler (cuobjdump, and nvdisasm beside it): the test is then skipped."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

# Kernel, and the instructions that it must have.
STEPS = {
    "ProductKernelILNS1_15BlockScaledStepE0E": {"UTCQMMA": 4, "UTCCP": 2, "LDTM": 1, "UTCATOMSWS": 1, "UTCBAR": 2},
    "ProductKernelILNS1_15BlockScaledStepE1E": {"UTCQMMA": 4, "UTCCP": 2, "LDTM": 1, "UTCATOMSWS": 1, "UTCBAR": 2},
    "ProductKernelILNS1_15BlockScaledStepE2E": {"UTCOMMA.4X": 4, "UTCCP": 8, "LDTM": 1, "UTCATOMSWS": 1, "UTCBAR": 2},
}
LOCAL_MEMORY = ("LDL", "STL")  # Registers that went to memory.


def kernels(sass: str) -> dict[str, Counter[str]]:
    """Opcodes of each function, counted; an opcode with modifiers under all its prefixes."""
    found: dict[str, Counter[str]] = {}
    counts: Counter[str] = Counter()
    for line in sass.splitlines():
        if match := re.match(r"\s*Function : (\S+)", line):
            counts = found.setdefault(match[1], Counter())
        elif match := re.match(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?\w+ )?([A-Z][A-Z0-9_.]*)", line):
            parts = match[1].split(".")
            counts.update(".".join(parts[:end]) for end in range(1, len(parts) + 1))
    return found


def main() -> int:
    """Prints what is missing; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuobjdump", default="cuobjdump")
    parser.add_argument("objects", nargs="+", type=Path)
    arguments = parser.parse_args()
    tool = shutil.which(arguments.cuobjdump) or shutil.which("cuobjdump")
    if tool is None or shutil.which("nvdisasm", path=f"{Path(tool).parent}:/usr/bin") is None:
        print("no cuobjdump with nvdisasm: nothing was checked")
        return 77
    errors = []
    seen = set()
    for path in arguments.objects:
        listing = subprocess.run([tool, "-lelf", path], capture_output=True, text=True, check=True).stdout
        if "sm_100a" not in listing:
            errors.append(f"{path.name}: no machine code for sm_100a: {listing.strip()}")
        sass = subprocess.run([tool, "-sass", path], capture_output=True, text=True, check=True).stdout
        for name, counts in kernels(sass).items():
            errors += [f"{name}: {counts[opcode]} {opcode}, want none" for opcode in LOCAL_MEMORY if counts[opcode]]
            for part, wanted in STEPS.items():
                if part not in name:
                    continue
                seen.add(part)
                errors += [f"{name}: {counts[opcode]} {opcode}, want {least} or more"
                           for opcode, least in wanted.items() if counts[opcode] < least]
    errors += [f"no kernel {part}" for part in STEPS if part not in seen]
    print("\n".join(errors) or f"{len(seen)} kernels: every form of step is there")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
