"""Three classic failures, three sentences; and whatever the SDK raises becomes one."""

from __future__ import annotations

import http.client
import socket
from pathlib import Path

import pytest
import requests
from docker.errors import APIError, DockerException

from strix_finetune.engine.failures import (
    Callback,
    causes,
    cure_of,
    engine_errors,
    explain,
    message_of,
    one_line,
    unreachable,
)
from strix_finetune.errors import EngineError, EngineUnavailable, InputError


def wrapped(error: Exception) -> DockerException:
    """As docker.APIClient raises it: an exception whose arguments hold an exception whose arguments hold the cause."""
    try:
        try:
            raise requests.exceptions.ConnectionError("Connection aborted.", error)
        except requests.exceptions.ConnectionError as inner:
            raise DockerException(f"Error while fetching server API version: {inner}") from inner
    except DockerException as outer:
        return outer


def test_the_three_classic_failures_are_three_sentences(tmp_path: Path) -> None:
    # a socket on which nobody listens, whether or not this host has an engine
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "there"))
    sentences = {
        str(unreachable(f"unix://{tmp_path}/{name}", wrapped(error), source=source))
        for error, name, source in (
            (ConnectionRefusedError(111, "Connection refused"), "there", ""),
            (PermissionError(13, "Permission denied"), "absent", ""),
            (FileNotFoundError(2, "No such file or directory"), "absent", "DOCKER_HOST"),
        )
    }
    assert len(sentences) == 3
    assert sum("is running" in sentence and "start it" in sentence for sentence in sentences) == 1
    assert sum("no permission" in sentence and "usermod" in sentence for sentence in sentences) == 1
    assert sum("correct or unset DOCKER_HOST" in sentence for sentence in sentences) == 1


def test_a_missing_default_socket_means_that_nothing_runs() -> None:
    error = unreachable("unix:///var/run/docker.sock", wrapped(FileNotFoundError(2, "No such file or directory")))
    assert "no container engine is running" in str(error)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (socket.gaierror(-2, "Name or service not known"), "host name"),
        (http.client.BadStatusLine("SSH-2.0-OpenSSH"), "is not a container engine"),
        (TimeoutError("timed out"), "does not answer"),
    ],
)
def test_wrong_addresses_are_told_by_what_is_wrong(error: Exception, words: str) -> None:
    found = unreachable("tcp://elsewhere:2375", wrapped(error), source="DOCKER_HOST")
    assert isinstance(found, EngineUnavailable)
    assert words in str(found)
    assert "DOCKER_HOST" in str(found)


def test_other_errors_are_not_taken_for_an_unreachable_engine() -> None:
    assert unreachable("unix:///x", ValueError("bad")) is None


def test_causes_end_in_a_circle() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert causes(first) == [first, second]


def test_the_engine_s_own_words_are_told() -> None:
    response = requests.Response()
    response.status_code = 404
    with (
        pytest.raises(EngineError) as caught,
        engine_errors("tag x as y", "unix:///s"),
    ):
        raise APIError("404 Client Error for http+docker://…", response=response, explanation="No such image: x")
    assert str(caught.value) == "could not tag x as y: No such image: x"


def test_an_engine_that_goes_away_is_named() -> None:
    with (
        pytest.raises(EngineError, match="went away while we tried to build the image"),
        engine_errors("build the image", "unix:///s"),
    ):
        raise requests.exceptions.ChunkedEncodingError("Connection broken: IncompleteRead(0 bytes read)")


def test_a_file_of_ours_that_cannot_be_read_is_not_the_socket() -> None:
    with pytest.raises(EngineError) as caught, engine_errors("push x", "unix:///s"):
        raise PermissionError(13, "Permission denied", "/home/x/.docker/config.json")
    assert not isinstance(caught.value, EngineUnavailable)
    assert "/home/x/.docker/config.json" in str(caught.value)


def test_our_own_mistakes_are_not_blamed_on_the_engine() -> None:
    with pytest.raises(KeyError), engine_errors("x", "unix:///s"):
        raise KeyError("ours")
    with pytest.raises(InputError), engine_errors("x", "unix:///s"):
        raise InputError("ours too")


def test_a_caller_s_error_passes_through() -> None:
    def full_disk(_text: str) -> None:
        raise OSError(28, "No space left on device")

    callback = Callback(full_disk)
    with pytest.raises(OSError, match="No space left") as caught, engine_errors("x", "unix:///s", callback):
        callback("line")
    assert not isinstance(caught.value, EngineError)


def test_messages_of_engines_and_of_what_stands_before_them() -> None:
    assert message_of(b'{"message": "no such\\n image"}') == "no such image"
    assert message_of(b'{"cause": "x", "message": ""}') == "x"
    assert message_of(b"<html>502 Bad Gateway</html>") == "<html>502 Bad Gateway</html>"
    assert message_of(b"") == ""


def test_one_line_is_one_line() -> None:
    assert one_line(" a\n  b.\n") == "a b"
    assert len(one_line("x" * 10_000)) == 600


def test_the_permission_cure_names_the_group_of_the_socket(tmp_path: Path) -> None:
    path = tmp_path / "docker.sock"
    path.touch()
    error = unreachable(f"unix://{path}", PermissionError(13, "Permission denied"))
    assert "usermod -aG" in str(error) or "owns the socket" in str(error)


@pytest.mark.parametrize(
    "words",
    [
        'creating read-write layer with ID "7cc1": no space left on device',
        "write /var/lib/docker/tmp/x: No space left on device",
        "mkdir /srv/a: disk quota exceeded",
    ],
)
def test_a_full_disk_has_a_cure(words: str) -> None:
    answer = requests.Response()
    answer.status_code = 500
    refused = APIError("500 Server Error", answer, words)
    with pytest.raises(EngineError, match=r"could not run x: .*; make room where the engine keeps images"):
        raise explain(refused, "run x", "unix:///run/x.sock")
    assert cure_of("no such image") == ""
