"""Resolve a set of Python requirements with uv into a hash-locked text, for the image's Python and not the host's.

Only wheels are taken: a lock that needs a compiler in the image would not be one. The result is checked again
here, because a lock that lets in what a layer forbids must not come to be by a change in a tool.

What sets of wheels bring into the image is there for the resolver too, in exactly its version: uv sees a stand-in, a
wheel of metadata alone, and may choose nothing else. So a set that would need another PyTorch does not resolve, and
none is in its text.
"""

from __future__ import annotations

import functools
import re
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from strix_finetune.errors import FetchFailed, LockError, Place, Problem
from strix_finetune.lockmodel import PipLock, normalize, requirements
from strix_finetune.netconf import NetSettings, redact
from strix_finetune.resolve.uv import compile_pins
from strix_finetune.schema import PipSet
from strix_finetune.wanted import declared_sha256

# what uv calls the glibc versions that it can be told, newest last
_GLIBC = (17, 28, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40)
_LONGEST = 420


def platform(glibc: str) -> str:
    """The newest platform of uv's that a system with `glibc` ("2.43") can run wheels of."""
    match = re.match(r"2\.(\d+)", glibc)
    minor = int(match[1]) if match else _GLIBC[0]
    return f"x86_64-manylinux_2_{max([known for known in _GLIBC if known <= minor], default=_GLIBC[0])}"


def resolve(
    name: str,
    wanted: PipSet,
    *,
    python: str,
    glibc: str,
    settings: NetSettings,
    previous: str = "",
    upgrade: Collection[str] | None = None,
    provided: Mapping[str, str] | None = None,
    place: Place | None = None,
) -> PipLock:
    """Resolve the set `name` for Python `python` ("3.14") on x86_64 Linux with `glibc` ("2.43").

    `previous` is the text of the lock until now. With `upgrade` None everything may move; otherwise only the
    distributions named there, and what they force to move. `provided`: normalized name → version of what the image
    has from sets of wheels. `place` is where the set is declared.

    Raises LockError where the requirements contradict each other or let in what is forbidden, FetchFailed where
    the index gives no answer.
    """
    with tempfile.TemporaryDirectory(prefix="strix-pip-") as folder:
        work = Path(folder)
        output = work / "requirements.txt"
        if previous and upgrade is not None:
            output.write_text(previous)
        never = "".join(f"{excluded} ; python_version < '0'\n" for excluded in wanted.exclude)
        (work / "overrides.txt").write_text(never)
        links = _stand_ins(work / "provided", provided or {})
        (work / "constraints.txt").write_text("".join(f"{held}=={got}\n" for held, got in (provided or {}).items()))
        words = [
            *("--output-file", str(output)),
            *("--overrides", str(work / "overrides.txt"), "--constraints", str(work / "constraints.txt")),
            *(option for held in provided or () for option in ("--no-emit-package", held)),
            *("--python", sys.executable, "--python-version", python, "--python-platform", platform(glibc)),
            *("--no-build", "--no-header", "--no-emit-index-url", "--no-emit-find-links"),
            # uv has no variable for it
            *(("--no-index",) if settings.indexes.no_index else ()),
            *(("--upgrade",) if upgrade is None else ()),
            *(option for named in upgrade or () for option in ("--upgrade-package", named)),
        ]
        run = functools.partial(_run, wanted=wanted, work=work, settings=settings, links=links)
        run = functools.partial(run, provided=provided or {}, name=name, place=place)
        run([*words, "--generate-hashes", "--no-annotate"])
        text = output.read_text()
        problems = check(name, wanted, text, python=python, provided=provided or {}, place=place)
        if problems and (forbidden := _forbidden(wanted, text)):
            # ask again for the reasons; only a failure pays for them
            run([*words, "--annotation-style", "line"])
            problems = [
                *_with_reasons(name, forbidden, output.read_text(), place),
                *(problem for problem in problems if " forbids " not in problem.message),
            ]
    if problems:
        raise LockError(problems)
    return PipLock(python, text, declared_sha256(wanted, python, provided))


def check(
    name: str,
    wanted: PipSet,
    text: str,
    *,
    python: str,
    provided: Collection[str] = (),
    place: Place | None = None,
) -> list[Problem]:
    """What is wrong with a resolved text: unhashed, forbidden, excluded, provided or unsatisfied entries."""
    from packaging.requirements import Requirement

    try:
        versions = {entry: version for entry, version, _ in requirements(text)}
    except ValueError as error:
        return [Problem(f"the requirements of '{name}' do not resolve to locked files: {error.args[1]}", place)]
    problems = [
        Problem(f"'{name}' forbids {pattern}, but '{entry}' gets in", place, "exclude it, or what brings it in")
        for entry, pattern in _forbidden(wanted, text).items()
    ]
    excluded = {normalize(entry) for entry in wanted.exclude}
    problems += [
        Problem(f"'{entry}' is in '{name}' although it is excluded", place, "report this fault of the resolver")
        for entry in sorted(excluded & versions.keys())
    ]
    problems += [
        Problem(
            f"'{entry}' is in '{name}' although a set of wheels brings it", place, "report this fault of the resolver"
        )
        for entry in sorted(set(provided) & versions.keys())
    ]
    excluded |= set(provided)
    environment = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    environment |= {"platform_machine": "x86_64", "platform_system": "Linux", "os_name": "posix"}
    for line in wanted.requirements:
        requirement = Requirement(line)
        entry = normalize(requirement.name)
        if entry in excluded or (requirement.marker and not requirement.marker.evaluate(environment)):
            continue
        version = versions.get(entry)
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            got = f"has {version}" if version else "lacks it"
            problems.append(Problem(f"'{line}' is not met by the resolution of '{name}', which {got}", place))
    return problems


def _stand_ins(folder: Path, provided: Mapping[str, str]) -> str:
    """A wheel without content for each provided distribution; returns the folder, or nothing where there is none."""
    import zipfile

    for name, version in provided.items():
        folder.mkdir(exist_ok=True)
        stem = f"{name.replace('-', '_')}-{version}"
        with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{stem}.dist-info/RECORD", "")
    return str(folder) if provided else ""


def _forbidden(wanted: PipSet, text: str) -> dict[str, str]:
    """Names in the text that a pattern forbids → the pattern."""
    entries = re.findall(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==", text, re.M)
    return {
        normalize(entry): pattern
        for entry in entries
        for pattern in wanted.forbid
        if fnmatchcase(normalize(entry), pattern.lower())
    }


def _with_reasons(name: str, forbidden: dict[str, str], annotated: str, place: Place | None) -> list[Problem]:
    """A problem for each forbidden name that something allowed asks for; the others only follow these."""
    problems = []
    for entry, pattern in forbidden.items():
        match = re.search(rf"^{re.escape(entry)}==.*# via ([^\n]+)", annotated, re.M)
        sources = [word.removeprefix("-r ").strip() for word in match[1].split(",")] if match else []
        if sources and all(source in forbidden for source in sources):
            continue
        reason = f" by way of {', '.join(source for source in sources if source != '-')}".removesuffix(" by way of ")
        message = f"'{name}' forbids {pattern}, but '{entry}' gets in{reason}"
        problems.append(Problem(message, place, "exclude it, or what brings it in"))
    return problems


def _run(
    words: Sequence[str],
    wanted: PipSet,
    work: Path,
    settings: NetSettings,
    links: str,
    provided: Mapping[str, str],
    name: str,
    place: Place | None,
) -> None:
    text = "".join(f"{line}\n" for line in wanted.requirements)
    done = compile_pins(words, text, settings, work, links=links)
    if done.returncode != 0:
        raise explain(done.stderr, name, place, provided)


def explain(
    stderr: str, name: str, place: Place | None = None, provided: Mapping[str, str] | None = None
) -> LockError | FetchFailed:
    """One sentence for what uv complains about: the requirements that contradict each other, or the failed fetch."""
    text = redact(stderr)
    if "No solution found" in text:
        premises = " and ".join(_premises(text))
        if len(premises) > _LONGEST:
            premises = f"{premises[: _LONGEST // 2].rstrip()} … {premises[-_LONGEST // 2 :].lstrip()}"
        pinned = [held for held, version in (provided or {}).items() if f"{held}=={version}" in premises]
        cure = f"change one of them; {', '.join(pinned)} comes from a set of wheels" if pinned else "change one of them"
        return LockError(Problem(f"the requirements of '{name}' cannot be met: {premises}", place, cure))
    error = re.search(r"^error: (.*)$", text, re.M)
    causes = re.findall(r"^\s*(?:cause|Caused by): (.*)$", text, re.M)
    head = (error[1] if error else text.strip()[:200]).replace("`", "'").rstrip(".")
    reason = f"{head} ({causes[-1].rstrip('.')})" if causes else head
    if re.search(r"Failed to (?:fetch|download)|error sending request|HTTP status|timed out", text):
        cure = "check the network, the proxy and the index settings"
        return FetchFailed(Problem(f"the package index gives no answer for '{name}': {reason}", place, cure))
    return LockError(Problem(f"uv cannot resolve '{name}': {reason}", place))


def _premises(text: str) -> list[str]:
    """The "because" parts of uv's derivation, each a clause; what it concludes from them is left out."""
    body = text.split("No solution found", 1)[1].split("\n", 1)[-1].split("hint:", 1)[0]
    body = re.sub(r"^\s*(?:cause:|╰─▶|×)\s*", "", body, flags=re.M)
    body = re.sub(r"(?:one|all) of:((?:\n[ │]+\S+$)+)", _shorten, body, flags=re.M)
    body = " ".join(re.sub(r"[│╰─▶×]", " ", body).split())
    clauses = re.split(r"(?:,? we can conclude that .*?(?=And because|$)|And because |Because |, and )", body)
    return [clause.strip(" .,") for clause in clauses if clause and clause.strip(" .,")]


def _shorten(match: re.Match[str]) -> str:
    ranges = match[1].replace("│", " ").split()
    return f"{ranges[0]} … {ranges[-1]}" if len(ranges) > 2 else " or ".join(ranges)
