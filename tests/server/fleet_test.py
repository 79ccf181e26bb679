"""Interface for schedulers of several servers: metrics by their rules of extraction, rendered prompts."""

import re
import shutil
import subprocess
import tempfile
import unittest

from server_process import Server
from server_testing import CHAT, ENDLESS, QUESTION

# The series that a picker of the Gateway API Inference Extension looks up, and the labels of the one that describes the cache. It takes the
# one series of each, and adds none up.
EXTRACTED = {"vllm": ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:cache_config_info"),
             "dsv4": ("dsv4_requests_waiting", "dsv4_requests_running", "dsv4_kv_cache_usage_ratio", "dsv4_cache_info")}
CACHE_LABELS = ("block_size", "num_gpu_blocks")
# Further names of vLLM that its router, inference-perf and the usual dashboards ask for.
OTHERS = {"vllm:gpu_cache_usage_perc", "vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_queries_total", "vllm:prefix_cache_hits_total",
          "vllm:prefix_cache_queries_total", "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:num_preemptions_total",
          "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds",
          "vllm:e2e_request_latency_seconds", "vllm:request_success_total"}


def families(text):
    """{name: (type, [(labels, value)])} of a text for Prometheus."""
    found = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            if name in found:
                raise AssertionError(f"{name} twice")
            found[name] = (kind, [])
        elif line and not line.startswith("#"):
            series, labels, value = re.fullmatch(r"([\w:]+)(?:\{(.*)\})? (\S+)", line).groups()
            name = series if series in found else re.sub(r"_(bucket|sum|count)$", "", series)
            found[name][1].append((dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or "")), float(value)))
    return found


def extract(text, engine):
    """(waiting, running, used, block size, blocks) as the picker reads them."""
    found = families(text)
    waiting, running, used, cache = (found[name] for name in EXTRACTED[engine])
    for kind, series in (waiting, running, used, cache):
        if kind != "gauge" or len(series) != 1:
            raise AssertionError(f"wanted one series of a gauge, got {kind}: {series}")
    labels = cache[1][0][0]
    return (*(series[0][1] for _, series in (waiting, running, used)), *(int(labels[name]) for name in CACHE_LABELS))


class Metrics(unittest.TestCase):
    def text(self, server):
        status, _, text = server.request("GET", "/metrics")
        self.assertEqual(status, 200)
        return text

    def test_a_picker_reads_the_load_under_either_name(self):
        with Server("--metric-names", "both", "--max-sequences", 1, "--kv-block-tokens", 32) as server:
            first = extract(self.text(server), "vllm")  # Before any request.
            self.assertEqual(first[:4], (0, 0, 0, 32))
            self.assertGreater(first[4], 100)
            seen = []

            def look(count):
                if count == 20:
                    seen.append(self.text(server))
            server.stream(CHAT, {"messages": QUESTION, "max_tokens": 60, **ENDLESS}, on_event=look)
            for engine in EXTRACTED:
                waiting, running, used, block, blocks = extract(seen[0], engine)
                self.assertEqual((waiting, running, block, blocks), (0, 1, *first[3:]))
                self.assertGreater(used, 0)
                self.assertLessEqual(used, 1)
                # State kept for reuse gives way, and is not in use.
                self.assertEqual(extract(self.text(server), engine)[:3], (0, 0, 0))
            found = families(self.text(server))
            self.assertEqual(OTHERS - found.keys(), set())
            self.assertTrue(all(labels["model_name"] == server.model for name in OTHERS for labels, _ in found[name][1]))
            self.assertEqual(found["vllm:request_success_total"][1][0][1], 1)
            self.assertEqual(server.metric("vllm:prompt_tokens_total"),
                             server.metric("dsv4_prefill_tokens_total") + server.metric("dsv4_cached_tokens_total"))

    def test_the_fraction_is_of_the_budget(self):
        with Server("--state-mib", 2, "--max-sequences", 1) as server:
            seen = []
            server.stream(CHAT, {"messages": QUESTION, "max_tokens": 60, **ENDLESS},
                          on_event=lambda count: seen.append(self.text(server)) if count == 20 else None)
            found = families(seen[0])
            self.assertAlmostEqual(found["dsv4_kv_cache_usage_ratio"][1][0][1], found["dsv4_state_bytes"][1][0][1] / 2 ** 21, delta=1e-3)

    def test_names_are_those_asked_for(self):
        for names, has, lacks in (("dsv4", "dsv4", "vllm"), ("vllm", "vllm", "dsv4")):
            with Server("--metric-names", names) as server:
                text = self.text(server)
                extract(text, has)
                self.assertEqual([name for name in EXTRACTED[lacks] if name in families(text)], [])
                self.assertIn("dsv4_step_seconds", families(text))  # It has no other name.

    def test_a_scraper_without_a_key_reads_what_is_opened(self):
        for options, status in (((), 401), (("--open-metrics",), 200)):
            with Server("--api-key", "k", *options) as server:
                self.assertEqual(server.request("GET", "/metrics")[0], status)
                self.assertEqual(server.request("GET", "/v1/models")[0], 401)

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed")
    def test_promtool_finds_nothing(self):
        with Server("--prefix-cache-dir", self.enterContext(tempfile.TemporaryDirectory()), "--metric-names", "dsv4") as server:
            server.post(CHAT, {"messages": QUESTION, "max_tokens": 4})
            server.request("GET", "/nowhere")
            check = subprocess.run(["promtool", "check", "metrics"], input=self.text(server), capture_output=True, text=True, check=False)
            self.assertEqual((check.returncode, check.stdout + check.stderr), (0, ""))
        with Server("--metric-names", "both") as server:
            server.post(CHAT, {"messages": QUESTION, "max_tokens": 4})
            check = subprocess.run(["promtool", "check", "metrics"], input=self.text(server), capture_output=True, text=True, check=False)
            # vLLM's names have a colon, which is for rules.
            complaints = [line for line in (check.stdout + check.stderr).splitlines() if "should not contain ':'" not in line]
            self.assertEqual(complaints, [])


class Render(unittest.TestCase):
    def test_prompts_are_rendered_as_routers_want_them(self):
        with Server() as server:
            chat = server.post(CHAT + "/render", {"messages": QUESTION, "temperature": 0})
            tokens = server.post("/tokenize", {"messages": QUESTION})["tokens"]
            self.assertEqual((chat["token_ids"], chat["tokens"], chat["model"], chat["count"]), (tokens, tokens, server.model, len(tokens)))
            texts = ["Once upon a time", [5, 6, 7]]
            for prompts in (texts[0], texts[1], [texts[0], "Two"]):
                listed = server.post("/v1/completions/render", {"prompt": prompts, "max_tokens": 3})
                wanted = [texts[1]] if prompts is texts[1] else [server.post("/tokenize", {"prompt": each})["tokens"]
                                                                 for each in ([prompts] if isinstance(prompts, str) else prompts)]
                self.assertEqual([each["token_ids"] for each in listed], wanted)
            status, _, reply = server.request("POST", CHAT + "/render", {"messages": 3})
            self.assertEqual((status, reply["error"]["type"]), (400, "invalid_request_error"))


if __name__ == "__main__":
    unittest.main()
