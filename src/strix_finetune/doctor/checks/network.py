"""Whether the addresses answer that this host's configuration names. What is not configured is not asked."""

from __future__ import annotations

from collections.abc import Iterator

from strix_finetune.doctor.host import Host
from strix_finetune.doctor.values import Check, Finding
from strix_finetune.errors import StrixError


def network(host: Host) -> Iterator[Finding]:
    if host.edges is None:
        return
    try:
        answers = host.edges.reach()
    except StrixError as error:
        problem = error.problems[0]
        yield Finding("blocks", problem.message, problem.cure)
        return
    if answers is None:
        yield Finding("unknown", "nobody was asked (--offline)")
        return
    if not answers:
        yield Finding("unknown", "the host's configuration names no address of its own, so nobody was asked")
    for answer in answers:
        data = {"name": answer.name, "place": answer.place}
        if answer.problem:
            yield Finding(
                "warning",
                f"{answer.place} ({answer.name}) cannot be reached: {answer.problem}; {answer.needed_for} needs it",
                "check the proxy variables, --ca-bundle and the address; an existing image needs no network",
                data=data,
            )
        else:
            yield Finding("ok", f"{answer.place} ({answer.name}) answers", data=data)


CHECKS = (
    Check(
        "network",
        "A proxy, a private CA or a mirror that is gone shows as a failed step half an hour later.",
        "the host's own configuration of apt, pip, uv and the channel",
        ("ok", "warning", "blocks", "unknown"),
        network,
    ),
)
