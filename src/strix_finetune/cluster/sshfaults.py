"""What OpenSSH's client printed when it did not get through, as one sentence with a cure.

The words are those of OpenSSH 7 to 10, whose messages are not translated.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from strix_finetune.cluster.nodes import Node
from strix_finetune.errors import Problem

_Made = tuple[str, str]


def fault(node: Node, said: str, *, name: str = "") -> Problem:
    """The sentence for a connection to `node` that failed, from all that ssh wrote to standard error."""
    name = name or f"node {node.name}"
    for pattern, make in _KNOWN:
        if found := re.search(pattern, said, re.MULTILINE | re.IGNORECASE):
            message, cure = make(node, found)
            return Problem(f"{name}: {message}", node.place, cure)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    words = lines[-1].rstrip(".") if lines else "it ended without a word"
    cure = f"see what `ssh {node.ssh} true` says"
    return Problem(f"{name}: the connection to {node.ssh} failed ({words[:200]})", node.place, cure)


def _changed(node: Node, found: re.Match[str]) -> _Made:
    where = found[1]
    message = f"the host key of {node.ssh} is another one than {where} holds, so this may not be that machine"
    return (
        message,
        f"ask its owner; if the key was really renewed: `ssh-keygen -R` with its name, then `ssh {node.ssh}`",
    )


def _unknown(node: Node, found: re.Match[str]) -> _Made:
    message = f"the host key of {node.ssh} is not known here"
    return message, f"run `ssh {node.ssh} true` once, compare the fingerprint with the machine's own, and accept it"


def _no_key(node: Node, found: re.Match[str]) -> _Made:
    message = f"ssh will not use the private key {found[1]}, because others can read it"
    return message, f"chmod 600 {found[1]}"


def _denied(node: Node, found: re.Match[str]) -> _Made:
    message = f"{node.ssh} does not let this user in without a question (it offers {found[1].replace(',', ', ')})"
    return message, f"`ssh-copy-id {node.ssh}`, and `ssh-add` where the key has a passphrase"


def _too_many(node: Node, found: re.Match[str]) -> _Made:
    message = f"{node.ssh} gave up before the right key was offered (too many keys in the agent)"
    return message, "name it in ~/.ssh/config: IdentityFile and IdentitiesOnly yes"


def _no_name(node: Node, found: re.Match[str]) -> _Made:
    return f"the name {found[1]} is not known", "correct 'ssh', or give the host an address in ~/.ssh/config or DNS"


def _refused(node: Node, found: re.Match[str]) -> _Made:
    message = f"nothing listens for ssh at {found[1]} port {found[2]}"
    return message, "start sshd there, or correct the port in ~/.ssh/config"


def _timed_out(node: Node, found: re.Match[str]) -> _Made:
    message = f"{node.ssh} does not answer (no ssh within the time limit)"
    return message, "check that the machine is on, the cable, and that no firewall drops ssh"


def _unreachable(node: Node, found: re.Match[str]) -> _Made:
    return (
        f"there is no way to {node.ssh} ({found[1].lower()})",
        "check that the machine is on, its address and the cable",
    )


def _closed(node: Node, found: re.Match[str]) -> _Made:
    message = f"{node.ssh} closed the connection before anybody could log in"
    return message, "read sshd's log there: often MaxStartups, a block list, or a sshd that does not start"


def _config(node: Node, found: re.Match[str]) -> _Made:
    return f"ssh does not understand its configuration ({found[1].strip()})", "correct that line"


def _no_login(node: Node, found: re.Match[str]) -> _Made:
    return f"the account of {node.ssh} may not run commands", "give it a login shell, or name another user in 'ssh'"


# the first that fits is taken: a changed key also fails verification, a key that is open to others also is refused
_KNOWN: tuple[tuple[str, Callable[[Node, re.Match[str]], _Made]], ...] = (
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED[\s\S]*?Offending \S+ key in (\S+?):\d+", _changed),
    (r"(REVOKED) HOST KEY|REMOTE HOST IDENTIFICATION HAS CHANGED", _changed),
    (r"Host key verification failed", _unknown),
    (r"Permissions \d+ for '(.+?)' are too open", _no_key),
    (r"Too many authentication failures", _too_many),
    (r"Permission denied \(([^)]*)\)", _denied),
    (r"Could not resolve hostname (\S+?):", _no_name),
    (r"connect to host (\S+) port (\d+): Connection refused", _refused),
    (r"timed out|Timeout, server .* not responding", _timed_out),
    (r"connect to host .*: (No route to host|Network is unreachable|Host is down)", _unreachable),
    (
        r"(.*Bad configuration option.*|.*terminating, \d+ bad configuration options.*|.*keyword .* extra arg.*)",
        _config,
    ),
    (r"currently not available|This service allows sftp connections only|no shell is allowed", _no_login),
    (r"Connection (closed|reset) by", _closed),
)
