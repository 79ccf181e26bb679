"""The manifests of deploy/: they keep to Kubernetes' schemas, and name what the server and each other have.

Wants kubernetes-validate (tests/requirements.txt), in .venv or beside; exits with 77 without it.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

try:
    import kubernetes_validate
    import yaml
except ImportError:
    python = ROOT / ".venv" / "bin" / "python"
    if python.exists() and pathlib.Path(sys.prefix) != python.parents[1]:
        os.execv(python, [str(python), *sys.argv])
    print("skipped: kubernetes-validate of tests/requirements.txt is not installed")
    sys.exit(77)

# Kinds that are no part of Kubernetes: what their definitions demand, and all that we may say. A name ends in ? where it may be missing; "*" stands for any.
# A list has at least one entry, a text matches its pattern, a number is in its range. Compared with the definitions of InferencePool, HTTPRoute, PodMonitor and
# LeaderWorkerSet of 2026-08: of 271 faults put into the manifests that these refuse, the forms refuse all.
TEXT = re.compile(".+")
LABELS = {"*": re.compile(".*")}
PORT = range(1, 65536)
TEMPLATE = {"metadata?": dict, "spec": dict}
OTHERS = {
    ("inference.networking.k8s.io/v1", "InferencePool"): {
        "selector": {"matchLabels": LABELS}, "targetPorts": [{"number": PORT}],
        "endpointPickerRef": {"name": TEXT, "port": {"number": PORT}, "failureMode?": re.compile("FailOpen|FailClose")}},
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): {
        "parentRefs": [{"name": TEXT}],
        "rules": [{"matches?": [{"path": {"type": re.compile("Exact|PathPrefix"), "value": re.compile("/.*")}}], "timeouts?": {"request": re.compile(r"(\d{1,5}(h|m|s|ms)){1,4}")},
                   "backendRefs": [{"group": re.compile(".*"), "kind": re.compile("[A-Za-z][A-Za-z0-9]*"), "name": TEXT}]}]},
    ("monitoring.coreos.com/v1", "PodMonitor"): {
        "selector": {"matchLabels": LABELS},
        "podMetricsEndpoints": [{"port": TEXT, "path?": TEXT, "interval?": re.compile(r"(\d+(y|w|d|h|m|s|ms))+")}]},
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): {
        "replicas": range(2**31), "leaderWorkerTemplate": {"size": range(1, 2**31), "restartPolicy?": re.compile("RecreateGroupOnPodRestart|RecreateGroupAfterStart|None"),
                                                           "leaderTemplate?": TEMPLATE, "workerTemplate": TEMPLATE}},
}
MANIFESTS = sorted([*ROOT.glob("deploy/kubernetes*.yaml"), ROOT / "deploy" / "leaderworkerset.yaml"])


def objects():
    return [(path.name, each) for path in MANIFESTS for each in yaml.safe_load_all(path.read_text())]


def pods():
    """(file, pod) of whatever makes pods."""
    for name, each in objects():
        if each["kind"] == "Pod":
            yield name, each
        elif each["kind"] == "LeaderWorkerSet":
            template = each["spec"]["leaderWorkerTemplate"]
            yield name, template["leaderTemplate"]
            yield name, template["workerTemplate"]
        elif "template" in each.get("spec", {}):
            yield name, each["spec"]["template"]


def faults(value, form, where):
    """What of `value` is not as `form` says, each with its place."""
    if isinstance(form, type):
        return [] if isinstance(value, form) else [f"{where}: got {value!r}, wanted {form.__name__}"]
    if isinstance(form, re.Pattern):
        return [] if isinstance(value, str) and form.fullmatch(value) else [f"{where}: got {value!r}, wanted {form.pattern!r}"]
    if isinstance(form, range):
        return [] if type(value) is int and value in form else [f"{where}: got {value!r}, wanted {form.start} to {form.stop - 1}"]
    if type(value) is not type(form) or not value:
        return [f"{where}: got {value!r}, wanted a {type(form).__name__} with something in it"]
    if isinstance(form, list):
        return [fault for index, each in enumerate(value) for fault in faults(each, form[0], f"{where}[{index}]")]
    if "*" in form:
        return [fault for name, each in value.items() for fault in faults(each, form["*"], f"{where}.{name}")]
    known = {name.rstrip("?"): name for name in form}
    found = [f"{where}.{name}: not known" for name in value if name not in known]
    for name, key in known.items():
        if name in value:
            found += faults(value[name], form[key], f"{where}.{name}")
        elif not key.endswith("?"):
            found.append(f"{where}.{name}: missing")
    return found


class Deploy(unittest.TestCase):
    def test_every_object_keeps_to_its_schema(self):
        self.assertGreaterEqual(len(objects()), 12)
        for name, each in objects():
            with self.subTest(file=name, kind=each["kind"]):
                form = OTHERS.get((each["apiVersion"], each["kind"]))
                if form is None:
                    kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)
                else:
                    self.assertEqual(faults(each["spec"], form, "spec"), [])
                    self.assertTrue(each["metadata"]["name"])

    def test_the_templates_of_others_are_pods(self):
        for name, pod in pods():
            with self.subTest(file=name):
                whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", **pod.get("metadata", {})}, "spec": pod["spec"]}
                kubernetes_validate.validate(whole, kubernetes_validate.latest_version(), strict=True)

    def test_options_and_metrics_are_the_servers(self):
        text = "\n".join(path.read_text() for path in MANIFESTS)
        registered = "\n".join(path.read_text() for path in (ROOT / "apps").rglob("*.cc"))
        options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
        self.assertGreater(len(options), 10)
        self.assertEqual({each for each in options if not re.search(rf'[",!]{each}[",]', registered)}, set())
        metrics = (ROOT / "src/server/observe/metrics.cc").read_text()
        self.assertEqual({each for each in re.findall(r"dsv4_\w+", text) if f'"{each}"' not in metrics}, set())

    def test_pods_take_requests_only_when_ready_and_end_in_order(self):
        for name, pod in pods():
            spec, labels = pod["spec"], pod.get("metadata", {}).get("labels", {})
            container = spec["containers"][0]
            if labels.get("role") != "worker":
                self.assertIn("/ready", json.dumps(container["readinessProbe"]), name)
                self.assertIn("startupProbe", container, name)
            words = " ".join(container.get("args", []))
            drain = re.search(r"--drain-seconds[= ](\d+)", words)
            duck = re.search(r"--lame-duck-seconds[= ](\d+)", words)
            self.assertGreater(spec.get("terminationGracePeriodSeconds", 30),
                               int(drain[1] if drain else 30) + int(duck[1] if duck else 5), name)

    def test_references_lead_somewhere(self):
        named = {(each["kind"], each["metadata"]["name"]) for _, each in objects()}
        for _, each in objects():
            for reference in ([each["spec"]["scaleTargetRef"]] if each["kind"] == "HorizontalPodAutoscaler" else
                              [backend for rule in each["spec"]["rules"] for backend in rule["backendRefs"]] if each["kind"] == "HTTPRoute" else []):
                self.assertIn((reference["kind"], reference["name"]), named)
        for name, each in objects():
            selector = each.get("spec", {}).get("selector") if each["kind"] in ("Service", "InferencePool", "PodMonitor", "PodDisruptionBudget") else None
            if selector:
                wanted = selector.get("matchLabels", selector)
                wanted = {key: value for key, value in wanted.items() if not key.startswith("apps.kubernetes.io/")}
                self.assertTrue(any(wanted.items() <= pod.get("metadata", {}).get("labels", {}).items() for _, pod in pods()), (name, wanted))

    def test_shell_of_the_manifests_names_every_rank(self):
        machines = {}
        for name, pod in pods():
            container = pod["spec"]["containers"][0]
            if "command" not in container:
                continue
            variables = {each["name"]: each["value"] for each in container["env"] if "value" in each}
            for machine in range(2):
                given = {"LWS_LEADER_ADDRESS": "leader", "LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": str(machine), "POD_INDEX": str(machine), **variables}
                with tempfile.TemporaryDirectory() as folder:
                    program = pathlib.Path(folder, "dsv4")
                    program.write_text('#!/bin/sh\necho "$MASTER_ADDR $MASTER_PORT $WORLD_SIZE $RANK $LOCAL_RANK"\n')
                    program.chmod(0o755)
                    done = subprocess.run(["bash", "-c", container["args"][0]], env={"PATH": f"{folder}:{os.environ['PATH']}", **given},
                                          capture_output=True, text=True, check=False)
                machines.setdefault((name, pod["metadata"]["labels"].get("role")), []).append(done.stdout.split("\n")[:-1])
        self.assertEqual(len(machines), 3)
        for (name, _), (first, second) in machines.items():
            here = len(first)
            ranks = sorted(int(line.split()[3]) for line in [*first, *second])
            self.assertEqual(ranks, list(range(2 * here)), name)
            for line in [*first, *second]:
                address, port, world, rank, local = line.split()
                self.assertEqual((port, int(world), int(rank) % here), ("29500", 2 * here, int(local)), name)
                self.assertTrue(address)


if __name__ == "__main__":
    unittest.main()
