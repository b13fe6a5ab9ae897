"""Names that only a hub knows: each way of not getting a config is told apart, at once, against a real HTTP
server.
"""

import http.server
import os
import subprocess
import sys
import threading

import pytest


class Hub(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        status, code = (403, "GatedRepo") if "gated" in self.path else (404, "RepoNotFound")
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *args):
        pass


@pytest.fixture
def hub():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def check(name, tmp_path, **env):
    command = [sys.executable, "-m", "cftdiag", "check", "--model", name]
    done = subprocess.run(
        command,
        env={**os.environ, "HF_HOME": str(tmp_path), **env},
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 2, done.stderr
    # on a loaded machine a line says now and then that the check is alive
    [line] = [line for line in done.stderr.strip().splitlines() if not line.startswith("cftdiag: ")]
    return line


@pytest.mark.parametrize(
    ("name", "told"),
    [("own/none", "the hub has no such model"), ("own/gated", "its owner gives access on request")],
)
def test_what_the_hub_answers(name, told, hub, tmp_path):
    assert told in check(name, tmp_path, HF_ENDPOINT=hub, HF_HUB_OFFLINE="0")


@pytest.mark.parametrize("offline", ["0", "1"])
def test_no_hub_names_the_catalogue_instead(offline, tmp_path):
    line = check("Qwen/Qwen3-4B-none", tmp_path, HF_ENDPOINT="http://127.0.0.1:9", HF_HUB_OFFLINE=offline)
    assert "cannot be reached" in line and "catalogue models of a like name: Qwen3-4B" in line
    assert "Retrying" not in line
