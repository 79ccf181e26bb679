"""`python -m dsv4` is the command `dsv4` of this Python's environment."""

import os
import sys
import sysconfig

program = os.path.join(sysconfig.get_path("scripts"), "dsv4")
if not os.path.exists(program):  # pip install --user
    program = os.path.join(sysconfig.get_path("scripts", f"{os.name}_user"), "dsv4")
os.execv(program, [program, *sys.argv[1:]])
