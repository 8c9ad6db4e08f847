"""Who runs doctor, by the files: the ids of the process, its groups now, and those that the next login will bring."""

from __future__ import annotations

from dataclasses import dataclass

from strix_finetune.doctor.host import Host, Owner, number


@dataclass(frozen=True, slots=True)
class User:
    """`groups`: numeric groups of the process; `listed`: those that /etc/group and /etc/passwd give the user.

    `stands_for`: doctor was started by sudo, and speaks of the person behind it, whose process it is not.
    """

    name: str
    uid: int
    home: str
    groups: frozenset[int]
    listed: frozenset[int]
    stands_for: bool = False

    @property
    def root(self) -> bool:
        return self.uid == 0

    def may_use(self, owner: Owner) -> bool:
        """Whether the permission bits let the process read and write a file with this owner."""
        return self.root or _allows(owner, self.uid, self.groups)

    def may_after_login(self, owner: Owner) -> bool:
        return self.root or _allows(owner, self.uid, self.listed)


def find(host: Host) -> User | None:
    """The person at the keyboard; None where the tree does not say who that is."""
    status = dict(line.split(":", 1) for line in (host.text("proc/self/status") or "").splitlines() if ":" in line)
    ids = [number(word) for word in status.get("Uid", "").split()]
    if not ids or ids[0] is None:
        return None
    uid = ids[0]
    sudo = number(host.env.get("SUDO_UID", ""))
    if uid == 0 and sudo:
        return _user(host, sudo, None)
    now = {gid for word in status.get("Groups", "").split() if (gid := number(word)) is not None}
    own = number(next(iter(status.get("Gid", "").split()), ""))
    return _user(host, uid, frozenset(now | ({own} if own is not None else set())))


def group_name(host: Host, gid: int) -> str:
    """The name of a group, or its number where it has none."""
    return next((name for name, number_, _ in _groups(host) if number_ == gid), str(gid))


def _user(host: Host, uid: int, groups: frozenset[int] | None) -> User:
    name, home, own = host.env.get("USER", "") if groups is not None else "", host.env.get("HOME", ""), None
    for line in (host.text("etc/passwd") or "").splitlines():
        fields = line.split(":")
        if len(fields) >= 6 and number(fields[2]) == uid:
            name, home, own = fields[0], fields[5] if groups is None or not home else home, number(fields[3])
            break
    listed = {gid for _, gid, members in _groups(host) if name and name in members} | (
        {own} if own is not None else set()
    )
    return User(
        name or str(uid),
        uid,
        home,
        frozenset(listed) if groups is None else groups,
        frozenset(listed),
        stands_for=groups is None,
    )


def _groups(host: Host) -> list[tuple[str, int, list[str]]]:
    found = []
    for line in (host.text("etc/group") or "").splitlines():
        fields = line.split(":")
        if len(fields) == 4 and (gid := number(fields[2])) is not None:
            found.append((fields[0], gid, fields[3].split(",")))
    return found


def _allows(owner: Owner, uid: int, groups: frozenset[int]) -> bool:
    """Read and write, by the first class that applies, as the kernel does it."""
    if owner.uid == uid:
        return owner.mode & 0o600 == 0o600
    if owner.gid in groups:
        return owner.mode & 0o060 == 0o060
    return owner.mode & 0o006 == 0o006
