"""A web server with three worker processes, a job runner and a cron job on one store, as docs/web.md shows it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

import mqstore

pytest.importorskip("gunicorn")

SHOP = """
import os
import mqstore

store = mqstore.open(os.environ["STORE"], mode="share", retention_bytes=1 << 30)


def app(environ, start_response):
    number = environ["PATH_INFO"].removeprefix("/")
    # A handle for each call: the one of the parent process is not for its children.
    with store.work_queue("orders") as orders:
        orders.put(number.encode())
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]
"""

RUNNER = """
import sys
import mqstore

with mqstore.open(sys.argv[1], mode="share", own=False) as store, store.work_queue("orders") as orders:
    while True:
        with orders.get() as order:
            store.append("done", order.body, keys=[order.text()])
"""

ORDERS = 120
PORT_TRIES = 100


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        text: str = answer.read().decode()
        return text


@pytest.mark.slow
def test_a_web_server_a_job_runner_and_a_cron_job(tmp_path: Path) -> None:
    home, port = tmp_path / "data", free_port()
    (tmp_path / "shop.py").write_text(SHOP)
    environment = {**os.environ, "STORE": str(home)}
    command = [sys.executable, "-m", "gunicorn", "--preload", "-w", "3", "-b", f"127.0.0.1:{port}", "shop:app"]
    with (
        (tmp_path / "errors").open("wb") as errors,
        subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=errors) as server,
        subprocess.Popen([sys.executable, "-c", RUNNER, home]) as runner,
    ):
        try:
            url = f"http://127.0.0.1:{port}/"
            for _ in range(PORT_TRIES):
                with suppress(OSError):
                    get(url + "0")
                    break
                assert server.poll() is None, (tmp_path / "errors").read_text()
                time.sleep(0.2)
            workers: set[str] = set()
            numbers = iter(range(1, ORDERS))
            lock = threading.Lock()

            def post() -> None:
                while True:
                    with lock:
                        number = next(numbers, None)
                    if number is None:
                        return
                    workers.add(get(f"{url}{number}"))

            threads = [threading.Thread(target=post) for _ in range(4)]
            for thread in threads:
                thread.start()
            expire = [sys.executable, "-m", "mqstore", "expire", home]
            for _ in range(2):
                subprocess.run(expire, check=True, capture_output=True, timeout=60)
            for thread in threads:
                thread.join()
            with mqstore.open(home, "share", own=False) as store, store.work_queue("orders") as orders:
                assert orders.join(60)
                shown = subprocess.run(
                    [sys.executable, "-m", "mqstore", "ps", home, "--format", "json"],
                    check=True,
                    capture_output=True,
                    text=True,
                    timeout=60,
                ).stdout
                assert '"shared": true' in shown
                done = sorted(int(message.body) for message in store.read("done"))
            assert done == list(range(ORDERS))
            assert len(workers) > 1
        finally:
            runner.kill()
            server.send_signal(signal.SIGTERM)
            server.wait(60)
    assert mqstore.verify(home).ok
