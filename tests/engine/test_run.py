"""Containers on real engines: how they end, what they print, and that nothing of them is left."""

from __future__ import annotations

import os
import resource
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from strix_finetune.engine import running, wire
from strix_finetune.engine.base import Mount, RunRequest
from strix_finetune.errors import EngineError, InputError
from tests.engine.conftest import LABEL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engine.conftest import Bench

pytestmark = pytest.mark.engine


@pytest.fixture(autouse=True)
def nothing_is_left(bench: Bench) -> Iterator[None]:
    yield
    assert bench.containers() == []


def test_exit_code_and_both_outputs(bench: Bench) -> None:
    result, output = bench.run("sh", "-c", "echo out; echo err >&2; exit 3")
    assert (result.exit_code, result.signal, result.timed_out, result.out_of_memory) == (3, "", False, False)
    assert sorted(output.split()) == ["err", "out"]


def test_nothing_that_is_said_early_or_at_length_is_missed(bench: Bench) -> None:
    _, output = bench.run("sh", "-c", "echo first; head -c 3000000 /dev/zero; echo last")
    assert output.startswith("first\n")
    assert output.endswith("last\n")
    assert len(output) == 3_000_000 + len("first\nlast\n")


@pytest.mark.parametrize("name", ["SEGV", "ABRT"])
def test_a_command_that_crashes_names_its_signal_even_as_the_only_process(bench: Bench, name: str) -> None:
    # As process 1 the kernel would keep the signal from it, and the exit code would be 0.
    result, _ = bench.run("sh", "-c", f"kill -{name} $$; exit 0")
    assert result.signal == f"SIG{name}"
    assert result.exit_code > 128


def test_a_shell_s_own_128_plus_n_is_named_too(bench: Bench) -> None:
    result, _ = bench.run("sh", "-c", "sh -c 'kill -SEGV $$'; exit $?")
    assert (result.exit_code, result.signal) == (139, "SIGSEGV")


def test_without_an_init_program_a_shell_stands_before_the_command(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.engine, "_has_init", False)
    result, output = bench.run("sh", "-c", 'echo "$1 $2"; kill -SEGV $$', "x", "a b", "c")
    assert result.signal == "SIGSEGV"
    assert "a b c" in output.splitlines()  # the shell's own word on the crash may come first
    assert bench.run("sh", "-c", "exit 7")[0].exit_code == 7


def test_a_timeout_kills_and_says_so(bench: Bench) -> None:
    begin = time.monotonic()
    result, output = bench.run("sh", "-c", "echo begun; sleep 100", timeout=1.5)
    assert time.monotonic() - begin < 8
    assert result.timed_out
    assert output == "begun\n"


def test_a_timeout_also_ends_what_closed_its_output(bench: Bench) -> None:
    begin = time.monotonic()
    result, _ = bench.run("sh", "-c", "exec sleep 100 >/dev/null 2>&1", timeout=1.5)
    assert time.monotonic() - begin < 8
    assert result.timed_out


def test_a_failed_start_leaves_nothing_behind(bench: Bench) -> None:
    with pytest.raises(EngineError, match=r"could not run .*no-such-user") as caught:
        bench.run("true", user="no-such-user")
    assert "\n" not in str(caught.value)


def test_a_command_that_is_not_there_ends_with_127(bench: Bench) -> None:
    result, output = bench.run("/no-such-program")
    assert result.exit_code == 127
    assert "/no-such-program" in output


def test_an_image_that_is_not_there_is_told_so(bench: Bench) -> None:
    with pytest.raises(EngineError, match="could not run localhost/strix-engine-test/never:1"):
        bench.run("true", image="localhost/strix-engine-test/never:1")


def test_an_interrupt_leaves_nothing_behind(bench: Bench) -> None:
    def interrupt(_output: bytes) -> None:
        raise KeyboardInterrupt

    request = RunRequest(bench.base, ("sh", "-c", "echo x; sleep 100"), labels={LABEL: "run"})
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        bench.engine.run(request, interrupt)
    assert time.monotonic() - begin < 15


def test_files_are_laid_in_executable_with_their_folders(bench: Bench) -> None:
    files = {"/strix/smoke/10-test.sh": b"#!/bin/sh\necho from the script $1\nls -ld /tmp\n", "/tmp/data": b"x"}
    result, output = bench.run("/strix/smoke/10-test.sh", "arg", files=files, user="1234:1234")
    assert result.exit_code == 0
    assert output.startswith("from the script arg\ndrwxrwxrwt")


def test_mounts_read_only_and_not(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/data").write_text("payload\n")
    (tmp_path / "out").mkdir()
    mounts = (Mount(str(tmp_path / "in"), "/in", read_only=True), Mount(str(tmp_path / "out"), "/out"))
    result, output = bench.run("sh", "-c", "cat /in/data > /out/copy; touch /in/x || echo refused", mounts=mounts)
    assert result.exit_code == 0
    assert "refused" in output
    assert (tmp_path / "out/copy").read_text() == "payload\n"
    assert not (tmp_path / "in/x").exists()


def test_a_missing_mount_source_is_told_before_anything_is_made(bench: Bench, tmp_path: Path) -> None:
    source = tmp_path / "train.jsonl"
    with pytest.raises(InputError, match=r"train\.jsonl' does not exist and cannot be mounted"):
        bench.run("true", mounts=(Mount(str(source), "/data/train.jsonl"),))
    assert not source.exists()


def test_outputs_belong_to_the_user_that_was_asked_for(bench: Bench, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    # A rootless engine maps everyone else's numbers away: there it is the caller's own that arrive.
    owner = (os.getuid(), os.getgid()) if bench.engine.info.rootless else (4321, 8765)
    mounts = (Mount(str(tmp_path), "/out"),)
    result, _ = bench.run("touch", "/out/f", mounts=mounts, user=f"{owner[0]}:{owner[1]}", keep_id=True)
    assert result.exit_code == 0
    stat = (tmp_path / "f").stat()
    assert (stat.st_uid, stat.st_gid) == owner


def test_numeric_groups_reach_the_process(bench: Bench) -> None:
    _, output = bench.run("id", "-G", user="1234:1234", group_add=("992", "44"))
    assert set(output.split()) == {"1234", "992", "44"}


def test_keep_groups_reaches_podman_s_runtime_as_an_annotation(podman_bench: Bench) -> None:
    """Whether the runtime acts on it (crun, rootless) is the host's affair."""
    seen: dict[str, str] = {}

    def look(_output: bytes) -> None:
        identity = podman_bench.containers()[0]
        record = wire.call(podman_bench.engine.api, "GET", f"/libpod/containers/{identity}/json", "look")
        seen.update(record["Config"]["Annotations"])

    labels = {LABEL: "run"}
    request = RunRequest(podman_bench.base, ("echo", "x"), group_add=("keep-groups",), labels=labels)
    assert podman_bench.engine.run(request, look).exit_code == 0
    assert seen["run.oci.keep_original_groups"] == "1"


def test_environment_and_a_folder_that_is_not_there_yet(bench: Bench) -> None:
    _, output = bench.run("sh", "-c", "echo $A; echo $PWD", env={"A": "a=b c"}, workdir="/not/there/yet")
    assert output == "a=b c\n/not/there/yet\n"


def test_shared_memory_is_as_large_as_asked(bench: Bench) -> None:
    fill = "dd if=/dev/zero of=/dev/shm/x bs=1048576 count=40 2>&1"
    assert bench.run("sh", "-c", fill, shm_size=64 << 20)[0].exit_code == 0
    result, output = bench.run("sh", "-c", fill, shm_size=32 << 20)
    assert result.exit_code == 1
    assert "No space left" in output


def test_the_hosts_shared_memory_is_the_hosts(bench: Bench) -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="strix-engine-test-") as shared:
        assert bench.run("test", "-e", shared.name, ipc="host")[0].exit_code == 0
        assert bench.run("test", "-e", shared.name)[0].exit_code == 1


def test_memory_may_be_locked_as_much_as_asked(bench: Bench) -> None:
    """A limit that every user may set: to raise it is a right of its own."""
    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    asked = 64 << 10 if hard < 0 else min(64 << 10, hard)
    _, output = bench.run("cat", "/proc/self/limits", memlock=asked)
    [line] = [line for line in output.splitlines() if line.startswith("Max locked memory")]
    assert line.split()[3:5] == [str(asked), str(asked)]


def test_a_device_is_there_and_can_be_opened(bench: Bench) -> None:
    device = next(name for name in ("/dev/fuse", "/dev/loop-control", "/dev/kmsg") if Path(name).exists())
    opened = f"exec 3<{device}" if os.access(device, os.R_OK) else "true"
    result, output = bench.run("sh", "-c", f"test -c {device} && {opened} && ls -l {device}", devices=(device,))
    assert result.exit_code == 0, output
    assert output.startswith("c")


def test_the_host_s_network_is_used_when_asked_for(bench: Bench) -> None:
    _, output = bench.run("sh", "-c", "cat /proc/net/dev", network="host")
    assert [line.split(":")[0].strip() for line in output.splitlines()[2:]] == [
        line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:]
    ]


def test_a_container_that_is_too_large_for_its_limit_is_told_so(
    docker_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Docker only: Podman's conmon does not see it on hosts with cgroups v1."""
    original = running.docker_spec

    def limited(*args: Any, **options: Any) -> dict[str, Any]:
        spec = original(*args, **options)
        spec["HostConfig"] |= {"Memory": 32 << 20, "MemorySwap": 32 << 20}
        return spec

    monkeypatch.setattr(running, "docker_spec", limited)
    result, _ = docker_bench.run("sh", "-c", "exec dd if=/dev/zero of=/dev/null bs=200M count=1")
    assert result.signal == "SIGKILL"
    assert result.out_of_memory


def test_containers_run_at_the_same_time(bench: Bench) -> None:
    results: dict[int, str] = {}

    def one(number: int) -> None:
        results[number] = bench.run("sh", "-c", f"sleep 1; echo {number}")[1]

    threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: f"{number}\n" for number in range(4)}
    assert time.monotonic() - begin < 10


def test_standard_input_reaches_an_interactive_container(bench: Bench) -> None:
    reading, writing = os.pipe()
    before = os.dup(0)
    os.dup2(reading, 0)
    try:
        os.write(writing, b"one\ntwo\n")
        os.close(writing)
        result, output = bench.run("sh", "-c", "cat; echo end", interactive=True)
    finally:
        os.dup2(before, 0)
        for descriptor in (before, reading):
            os.close(descriptor)
    assert (result.exit_code, output) == (0, "one\ntwo\nend\n")
