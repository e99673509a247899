import http.server
import importlib.util
import json
import threading
from pathlib import Path

import pytest

PATH = Path(__file__).parents[1] / "scripts" / "known_holes.py"
SPEC = importlib.util.spec_from_file_location("known_holes", PATH)
assert SPEC is not None and SPEC.loader is not None
known_holes = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(known_holes)


@pytest.fixture
def database():
    """A stand-in for the database, which knows one hole, in `holey` 1.0."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
            asked.extend((each["package"]["name"], each["version"]) for each in question)
            answers = [{"vulns": [{"id": "X-1"}]} if each["package"]["name"] == "holey" else {} for each in question]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"results": answers}).encode())

        def log_message(self, *arguments):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def test_a_known_hole_fails_and_is_named(tmp_path, database, capsys, monkeypatch):
    address, asked = database
    pins = tmp_path / "constraints.txt"
    pins.write_text("# a remark\ntorch==2.13.0+cpu\nholey==1.0 ; python_version > '3'\n")
    assert known_holes.main([str(pins)], address) == 1
    assert asked == [("torch", "2.13.0"), ("holey", "1.0")]
    assert capsys.readouterr().out == "holey 1.0: https://osv.dev/vulnerability/X-1\n2 packages, 1 known holes\n"
    monkeypatch.setitem(known_holes.ACCEPTED, "X-1", "is not used")
    assert known_holes.main([str(pins)], address) == 0


def test_without_an_answer_nothing_fails(capsys):
    assert known_holes.main([], "http://127.0.0.1:9") == 0
    assert "were not checked" in capsys.readouterr().out
