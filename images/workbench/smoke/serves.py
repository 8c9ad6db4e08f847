#!/opt/venv/bin/python
"""`workbench`, started by a uid that the image does not know: for its token alone, on 127.0.0.1 alone, and its kernel
is the image's Python."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import websocket

STRANGER = 12345
LISTENS = "0A"


def become_stranger() -> str:
    """A folder of the stranger's, in which there are files that are named like modules."""
    work = tempfile.mkdtemp(prefix="strix-workbench-")
    for name in ("jupyterlab", "strix_train", "argparse"):
        Path(work, f"{name}.py").write_text('raise SystemExit("a file of the working directory was imported")\n')
    if os.geteuid() == 0:
        os.chown(work, STRANGER, STRANGER)
        os.setgroups([])
        os.setgid(STRANGER)
        os.setuid(STRANGER)
    os.environ["HOME"] = "/nonexistent"
    os.chdir(work)
    return work


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def call(url: str, token: str = "", data: object = None, host: str = "") -> tuple[int, object]:
    """The status of the answer, and its JSON."""
    headers = {"Authorization": f"token {token}"} if token else {}
    headers |= {"Host": host} if host else {}
    body = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(url, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text.startswith((b"{", b"[")) else text.decode()
    except urllib.error.HTTPError as error:
        return error.code, None


def addresses() -> set[str]:
    """Where anything listens: addresses as /proc writes them, in hexadecimal."""
    found = set()
    for table in ("tcp", "tcp6"):
        path = Path("/proc/net", table)
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            words = line.split()
            if words[3] == LISTENS:
                found.add(words[1].split(":")[0])
    return found


def executed(port: int, token: str, code: str) -> str:
    """What code prints in a new kernel of the server."""
    status, kernel = call(f"http://127.0.0.1:{port}/api/kernels", token, {})
    assert status == 201, f"a kernel is refused with status {status}"
    where = f"ws://127.0.0.1:{port}/api/kernels/{kernel['id']}/channels?token={token}"
    link = websocket.create_connection(where, timeout=60)
    header = {"msg_id": "1", "username": "", "session": "1", "msg_type": "execute_request", "version": "5.3"}
    content = {"code": code, "silent": False}
    link.send(json.dumps({"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}))
    said = ""
    while True:
        message = json.loads(link.recv())
        if message["parent_header"].get("msg_id") != "1":
            continue
        if message["msg_type"] == "stream":
            said += message["content"]["text"]
        elif message["msg_type"] == "error":
            sys.exit("\n".join(message["content"]["traceback"]))
        elif message["msg_type"] == "execute_reply":
            link.close()
            return said.strip()


def url_of(server: subprocess.Popen[str], log: Path) -> str:
    """The address that the server prints, once it answers."""
    for _ in range(900):
        if found := re.search(r"http://\S+", log.read_text()):
            return found[0]
        if server.poll() is not None:
            sys.exit(f"workbench ends with {server.returncode}:\n{log.read_text()}")
        time.sleep(0.1)
    sys.exit(f"workbench prints no address:\n{log.read_text()}")


began = time.monotonic()
work, port = become_stranger(), free_port()
log = Path(work, "log")
with log.open("w") as stream:
    server = subprocess.Popen(["workbench", "--port", str(port), "--examples", "notebooks"], stdout=stream, stderr=stream)
try:
    url = url_of(server, log)
    token = url.partition("token=")[2]
    if not url.startswith(f"http://127.0.0.1:{port}/") or len(token) < 32:
        sys.exit(f"the address {url} is not this machine's alone, or has no token")
    took = time.monotonic() - began
    root = f"http://127.0.0.1:{port}"
    asked = {"none": "", "a wrong one": "0" * len(token)}
    for what, wrong in asked.items():
        for path in ("/api/contents", "/api/kernelspecs", "/api/terminals"):
            if (status := call(root + path, wrong)[0]) != 403:
                sys.exit(f"{path} answers with status {status} where the token is {what}")
    status, page = call(f"{root}/lab?token={token}")
    if status != 200 or "jupyter-config-data" not in str(page):
        sys.exit(f"the address that was printed answers with status {status}, and not with JupyterLab")
    if re.search(r'(?:src|href)="https?://', str(page)):
        sys.exit("the page loads something from elsewhere")
    if (status := call(f"{root}/api/contents", token, host="attacker.example")[0]) != 403:
        sys.exit(f"under another host's name it answers with status {status}")
    names = [entry["name"] for entry in call(f"{root}/api/contents/notebooks", token)[1]["content"]]
    if not [name for name in names if name.endswith(".ipynb")]:
        sys.exit(f"the examples are not in the folder but: {names}")
    said = executed(port, token, "import os, sys; print(sys.executable, os.getuid(), os.path.expanduser('~'))")
    python, uid, home = said.split()
    if python != "/opt/venv/bin/python" or (os.geteuid() == STRANGER and int(uid) != STRANGER):
        sys.exit(f"the kernel is {python} of uid {uid}")
    if not os.access(home, os.W_OK):
        sys.exit(f"the kernel's home {home} cannot be written")
    executed(port, token, "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.savefig('curve.png')")
    if not Path("notebooks").is_dir() or not Path("curve.png").is_file():
        sys.exit("a kernel does not work in the folder that the server was started in")
    loopback = {"0100007F", "00000000000000000000000001000000"}
    if addresses() - loopback:
        sys.exit(f"something listens elsewhere than on 127.0.0.1: {', '.join(sorted(addresses() - loopback))}")
finally:
    server.terminate()
    server.wait(30)
    shutil.rmtree(work)
print(f"JupyterLab after {took:.1f} s: by its token alone, on 127.0.0.1 alone, for uid {uid}; the kernel is {python}")
