"""Other tools moving the same number of bytes over the same loopback: iperf3, and curl from nginx over https.

Neither checks content: iperf3 throws its bytes away, curl writes a file or throws it away.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

NEEDED: Final = {"iperf3": "iperf3", "nginx": "nginx", "curl": "curl", "openssl": "openssl"}
"""Program, and its Debian package."""

_NGINX: Final = """
daemon off; user {user}; worker_processes 1; pid {root}/pid; error_log {root}/error.log;
events {{ worker_connections 64; }}
http {{
  access_log off; sendfile on;
  client_body_temp_path {root}/t1; proxy_temp_path {root}/t2; fastcgi_temp_path {root}/t3;
  uwsgi_temp_path {root}/t4; scgi_temp_path {root}/t5;
  server {{
    listen 127.0.0.1:{port} ssl; root {root}/www;
    ssl_certificate {root}/cert.pem; ssl_certificate_key {root}/key.pem; ssl_protocols TLSv1.3;
  }}
}}
"""


def missing() -> list[str]:
    """Packages to install before the rivals can run."""
    path = os.environ.get("PATH", "") + ":/usr/sbin"
    return [package for program, package in NEEDED.items() if shutil.which(program, path=path) is None]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Until something listens at `port`."""
    for _ in range(200):
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"nothing listens at port {port}")


@contextlib.contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(10)


@contextlib.contextmanager
def nginx(root: Path, size: int) -> Iterator[tuple[str, int]]:
    """nginx serving a file of `size` random bytes over TLS 1.3; yields its URL and process id."""
    (root / "www").mkdir(parents=True)
    with (root / "www" / "file").open("wb") as file:
        for start in range(0, size, 1 << 20):
            file.write(os.urandom(min(1 << 20, size - start)))
    certificate = ["openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-subj", "/CN=localhost", "-days", "7"]
    certificate += ["-keyout", str(root / "key.pem"), "-out", str(root / "cert.pem")]
    subprocess.run(certificate, check=True, capture_output=True)
    port = free_port()
    (root / "nginx.conf").write_text(_NGINX.format(root=root, port=port, user=getpass.getuser()))
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    with running(program, "-c", str(root / "nginx.conf"), "-e", str(root / "error.log")) as process:
        wait_for(port, process)
        yield f"https://localhost:{port}/file", process.pid


def curl(url: str, root: Path, output: Path) -> float:
    """MB/s (10^6) of one download into `output`, the certificate checked."""
    command = ["curl", "-s", "-f", "--cacert", str(root / "cert.pem"), "-o", str(output)]
    command += [
        "-w",
        "%{size_download} %{time_total}",
        "--resolve",
        f"localhost:{url.split(':')[2].split('/')[0]}:127.0.0.1",
        url,
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    size, seconds = done.stdout.split()
    return int(size) / 1e6 / float(seconds)


def iperf3(size: int) -> float:
    """MB/s (10^6) of one TCP stream of `size` bytes."""
    port = free_port()
    command = ["iperf3", "-c", "127.0.0.1", "-p", str(port), "-n", str(size), "-J"]
    with running("iperf3", "-s", "-B", "127.0.0.1", "-p", str(port)):
        for _ in range(100):  # it takes a connection that only knocks for a test, so its client does the waiting
            done = subprocess.run(command, capture_output=True, text=True)
            found = json.loads(done.stdout)["end"].get("sum_received")  # absent after a refused connection
            if found:
                return float(found["bits_per_second"]) / 8e6
            time.sleep(0.05)
    raise RuntimeError(f"iperf3 fails: {done.stdout}")


def install(*packages: str) -> None:
    """From PyPI, without what they depend on, into a directory of their own: a benchmark's peer is no dependency.

    This process and those that it starts find them there.
    """
    folder = Path(tempfile.gettempdir()) / f"kvsync-benchmark-{packages[0].partition('=')[0]}"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *packages]
    if not folder.exists():
        subprocess.run(command, check=True)
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


def apt_install(*packages: str) -> None:
    """From Debian; needs root."""
    program = shutil.which("apt-get") or "/usr/bin/apt-get"
    subprocess.run([program, "install", "-y", "--no-install-recommends", *packages], check=True, stdout=sys.stderr)
