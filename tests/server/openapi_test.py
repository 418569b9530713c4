#!/usr/bin/env python3
"""src/server/openapi.json and the server say the same.

    openapi_test.py BINARY [MODEL]

The document is well formed; its routes are those of the server, found among the paths in the sources by asking the server
for their methods; and schemathesis, with small bounds and a fixed seed, finds no error of the server's own and no answer
that is not as described.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from openapi_spec_validator import validate

from server_process import Server

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENT = ROOT / "src/server/openapi.json"
METHODS = {"get", "put", "post", "delete", "options", "head", "patch", "trace"}
MOST_TOKENS = 4
OPTIONAL_FIELDS = 4  # of a request: most of many would exclude each other
UNANSWERED = {"/infill", "/models/unload"}  # the default model knows no filling in; see bounded()


def references(node):
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def check_references(document):
    used = set(references(document))
    for reference in used:
        node = document
        assert reference.startswith("#/"), reference
        for part in reference[2:].split("/"):
            assert part in node, f"{reference} leads nowhere"
            node = node[part]
    for kind, parts in document["components"].items():
        if kind != "securitySchemes":
            for name in parts:
                assert f"#/components/{kind}/{name}" in used, f"components/{kind}/{name} is not used"
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(ids) == len(set(ids)), "an operationId comes twice"


def operations(document):
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method in METHODS:
                yield path, method, operation


def allowed(url, path):
    """The methods that the server has at a path; none: no such route."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, method="OPTIONS"), timeout=10) as answer:
            methods = answer.headers["allow"]
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return set()
        raise
    return {m.strip().lower() for m in methods.split(",")} - {"options", "head"}


def check_routes(document, url):
    described = {}
    for path, method, _ in operations(document):
        described.setdefault(path, set()).add(method)
    page = {"/", *("/" + f.name for f in (ROOT / "src/server/page").iterdir())}
    found = set()
    for source in (ROOT / "src/server").glob("*.cc"):
        found.update(re.findall(r'"(/[A-Za-z0-9_/{}.-]*)"', source.read_text()))
    found = {re.sub(r"\.\.\.}$", "}", path) for path in found} - page
    assert len(found) > 10, found
    for path in sorted(found | set(described)):
        there, wanted = allowed(url, re.sub(r"{[^}]*}", "x", path)), described.get(path, set())
        assert there == wanted, f"{path}: the server has {there or 'no route'}, openapi.json {wanted or 'none'}"
    with urllib.request.urlopen(url + "/openapi.json", timeout=10) as answer:
        assert answer.headers["content-type"] == "application/json" and json.load(answer) == document


def bounded(document, model):
    """The document with requests that are quick to answer."""
    def visit(node):
        if isinstance(node, list):
            for value in node:
                visit(value)
        if not isinstance(node, dict):
            return
        properties = node.get("properties")
        if isinstance(properties, dict):
            few = {"type": "integer", "minimum": 1, "maximum": MOST_TOKENS}
            for name in ("max_completion_tokens", "dimensions"):  # has to be max_tokens; has to be the model's
                properties.pop(name, None)
            if "n_predict" in properties:  # max_tokens is another name of it
                properties.pop("max_tokens", None)
            for name, bound in {"stream": {"const": False}, "n": {"type": "integer", "minimum": 1, "maximum": 2}, "model": {"enum": [model]},
                                "max_tokens": few, "max_output_tokens": few, "n_predict": few, "num_predict": few}.items():
                if name in properties:
                    properties[name] = bound
                    if name not in ("n", "model"):
                        node["required"] = sorted({*node.get("required", []), name})
        for value in node.values():
            visit(value)

    document = json.loads(json.dumps(document))
    visit(document["components"].get("requestBodies", {}))
    visit(document["components"]["schemas"].get("OllamaOptions", {}))
    for _, _, operation in operations(document):
        visit(operation.get("requestBody", {}))
    bodies = [*document["components"].get("requestBodies", {}).values(), *(o.get("requestBody", {}) for _, _, o in operations(document))]
    for body in bodies:
        if "content" in body:
            schema = body["content"]["application/json"]["schema"]
            schema["maxProperties"] = len(schema.get("required", [])) + OPTIONAL_FIELDS
    document["components"]["parameters"]["model"]["schema"] = {"enum": [model]}
    # What is there to refuse answers 501 always, and a model that is unloaded is loaded again at each request.
    for path in [p for p, _, operation in operations(document) if "501" in operation["responses"]] + ["/models/unload"]:
        document["paths"].pop(path, None)
    return document


def check_answered(document, record):
    """Most requests are wrong, but not all of any route."""
    answered = set()
    for entry in json.loads(record.read_text())["log"]["entries"]:
        if entry["response"]["status"] == 200:
            answered.add((entry["request"]["method"].lower(), urllib.parse.urlsplit(entry["request"]["url"]).path))
    for path, method, operation in operations(document):
        if "{" not in path and "200" in operation["responses"] and path not in UNANSWERED:
            assert (method, path) in answered, f"no request to {path} was answered with 200"


def check_answers(document, server):
    with urllib.request.urlopen(server.url + "/v1/models", timeout=10) as answer:
        model = json.load(answer)["data"][0]["id"]
    with tempfile.TemporaryDirectory() as folder:
        schema, record = Path(folder) / "openapi.json", Path(folder) / "record.har"
        schema.write_text(json.dumps(bounded(document, model)))
        checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
        command = [str(Path(sys.executable).parent / "schemathesis"), "run", str(schema), "--url", server.url, "--checks", checks, "--phases", "fuzzing",
                   "--max-examples", os.environ.get("ARGENT_TEST_EXAMPLES", "8"), "--seed", "1", "--request-timeout", "60", "--continue-on-failure",
                   "--suppress-health-check", "all", "--no-shrink", "--warnings", "off", "--no-color", "--report", "har", "--report-har-path", str(record)]
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
        print(result.stdout[-12000:] if result.returncode else result.stdout[-1200:], result.stderr[-2000:])
        assert result.returncode == 0, "schemathesis found something"
        check_answered(document, record)
    with urllib.request.urlopen(server.url + "/health", timeout=10) as answer:
        assert answer.status == 200


def main():
    document = json.loads(DOCUMENT.read_text())
    validate(document)
    check_references(document)
    model = sys.argv[2] if len(sys.argv) > 2 else None
    with Server(sys.argv[1], model, "--ctx", "256", "--parallel", "4") as server:
        check_routes(document, server.url)
        check_answers(document, server)
    print("ok")


if __name__ == "__main__":
    main()
