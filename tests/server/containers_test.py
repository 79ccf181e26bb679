"""Two replicas as containers behind HAProxy and nginx, under load: replaced by `podman stop`, and killed. The same as proxies_test asks of processes.

DSV4_TEST_IMAGE names an image of deploy/Containerfile. Exits with 77 without it, or without podman.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import unittest

import proxies_test
from dsv4_process import PATIENCE, TINY, wait_until
from proxies_test import http_status

IMAGE = os.environ.get("DSV4_TEST_IMAGE")


def podman(*arguments):
    done = subprocess.run(["podman", *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"podman {' '.join(map(str, arguments))}: {done.stderr}")
    return done.stdout.strip()


class Container:
    """A replica, with the calls of server_process.Server that the tests make."""

    def __init__(self, port):
        self.name = podman("run", "--detach", "--network", "host", "--volume", f"{TINY}:/model:ro", IMAGE, "--port", port, "--context", 4096,
                           "--lame-duck-seconds", 2, "--drain-seconds", int(PATIENCE), "--max-sequences", 8)
        self.process, self.returncode = self, None
        wait_until(lambda: http_status(port) == 200, "the container answers")

    def kill(self):
        podman("kill", self.name)

    def wait(self):
        self.returncode = int(podman("wait", self.name))

    def __exit__(self, *_):
        with contextlib.suppress(AssertionError):  # Killed, and gone.
            podman("stop", "--time", int(PATIENCE) + 10, self.name)
        if self.returncode is None:
            self.wait()
        podman("rm", "--force", self.name)


class TwoContainers(proxies_test.TwoReplicas):
    def replica(self, index):
        return Container(self.ports[index])


if __name__ == "__main__":
    if IMAGE is None or shutil.which("podman") is None or not all(proxies_test.PROGRAMS.values()):
        print("skipped: wants DSV4_TEST_IMAGE, podman, nginx and haproxy")
        sys.exit(77)
    unittest.main()
