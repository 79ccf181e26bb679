# pip: opentelemetry-proto==1.45.2 protobuf==7.36.2
"""OpenTelemetry's own messages: spans are parsed with nothing unknown, and have their parents, those of refused requests too."""

import http.server
import json
import threading
import urllib.request

from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from server_process import Server

received = []


def check_known(message):
    """No field of it, nor of a message in it, is one that these messages do not know."""
    assert len(UnknownFieldSet(message)) == 0, message
    for field, value in message.ListFields():
        for inner in value if field.is_repeated else [value]:
            if field.message_type:
                check_known(inner)


class Collector(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        message = trace_service_pb2.ExportTraceServiceRequest()
        message.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
        received.append((self.path, self.headers["Content-Type"], message))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


collector = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
threading.Thread(target=collector.serve_forever, daemon=True).start()
environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}", "OTEL_SERVICE_NAME": "mine"}
parent = "ab" * 16, "cd" * 8
with Server("--context", 2048, environment=environment) as server:
    for path, body in (("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}),
                       ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}),
                       ("/v1/responses", {"input": "hi", "max_output_tokens": 16}),
                       ("/api/generate", {"model": "tiny", "prompt": "hi", "stream": False, "options": {"num_predict": 8}})):
        request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json", "traceparent": f"00-{parent[0]}-{parent[1]}-01"})
        urllib.request.urlopen(request).read()
    server.request("POST", "/v1/chat/completions", {"messages": "none"})
collector.shutdown()
assert {(path, kind) for path, kind, _ in received} == {("/v1/traces", "application/x-protobuf")}, received
spans = {}
for _, _, message in received:
    check_known(message)
    for resource in message.resource_spans:
        assert {one.key: one.value.string_value for one in resource.resource.attributes}["service.name"] == "mine"
        for scope in resource.scope_spans:
            spans |= {span.span_id: span for span in scope.spans}
roots = [span for span in spans.values() if span.parent_span_id not in spans]
assert len(roots) == 5, [span.name for span in roots]
for span in spans.values():
    assert len(span.span_id) == 8 and len(span.trace_id) == 16 and span.start_time_unix_nano <= span.end_time_unix_nano, span
    if span not in roots:
        assert span.trace_id == spans[span.parent_span_id].trace_id
refused = [span for span in roots if span.status.code or any(one.key == "error.type" for one in span.attributes)]
assert len(refused) == 1, refused
for span in roots:
    if span not in refused:
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == parent, span
        assert {"gen_ai.operation.name", "gen_ai.request.model", "gen_ai.latency.time_to_first_token"} <= {one.key for one in span.attributes}, span
print(f"{len(spans)} spans of {len(roots)} requests")
