"""Some seventy machines, good and broken: exactly these findings, with these numbers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from strix_finetune.doctor.registry import CHECKS
from strix_finetune.doctor.values import VERDICTS, Report
from tests.unit.doctor.hosts import said, verdicts
from tests.unit.doctor.scenes_engine import ENGINES
from tests.unit.doctor.scenes_hardware import HARDWARE

SCENES = HARDWARE | ENGINES


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Report]:
    folder = tmp_path_factory.mktemp("hosts")
    return {name: scene.report(folder / str(number)) for number, (name, scene) in enumerate(SCENES.items())}


@pytest.mark.parametrize("name", SCENES)
def test_findings(name: str, reports: Mapping[str, Report]) -> None:
    scene, report = SCENES[name], reports[name]
    assert verdicts(report) == list(scene.expected)
    for check, numbers in scene.numbers.items():
        found = next(result.finding.data for result in report.results if result.check == check)
        assert {key: found.get(key) for key in numbers} == numbers
    for words in scene.words:
        assert words in said(report)
    for result in report.results:
        assert not result.finding.says.endswith((".", ";"))
        assert "@" not in result.finding.says + result.finding.fix
        # whoever is told that something is wrong is told what to do
        if result.finding.verdict in ("blocks", "warning"):
            assert result.finding.fix


def test_every_verdict_of_every_check(reports: Mapping[str, Report]) -> None:
    """No check claims a verdict that no machine here shows, and none gives one that it does not claim."""
    assert len(SCENES) == len(HARDWARE) + len(ENGINES)
    seen = {(result.check, result.finding.verdict) for report in reports.values() for result in report.results}
    assert seen == {(check.name, verdict) for check in CHECKS for verdict in check.verdicts}


def test_checks_are_told_apart() -> None:
    names = [check.name for check in CHECKS]
    assert len(names) == len(set(names))
    for check in CHECKS:
        assert check.why.endswith(".")
        assert check.source
        assert set(check.verdicts) <= set(VERDICTS)
