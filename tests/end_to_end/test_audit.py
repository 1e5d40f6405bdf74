"""The check of dependencies for known vulnerabilities: what it makes of the output of pip-audit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.oracles.audit import judge

ROOT = Path(__file__).resolve().parents[2]
SOUND: dict[str, Any] = {"name": "click", "version": "8.1", "vulns": []}
FLAWED: dict[str, Any] = {
    "name": "jinja2",
    "version": "2.4.1",
    "vulns": [{"id": "PYSEC-2014-8", "fix_versions": ["2.7.2"]}, {"id": "PYSEC-2099-1", "fix_versions": []}],
}
OWN = {"name": "tracebed", "skip_reason": "Dependency not found on PyPI and could not be audited: tracebed (0.1)"}
ABSENT = {"name": "markupsafe", "skip_reason": "Dependency not found on PyPI and could not be audited: markupsafe"}


def output(*packages: dict[str, Any]) -> str:
    return json.dumps({"dependencies": packages, "fixes": []})


@pytest.mark.parametrize(
    ("text", "errors", "status", "lines"),
    [
        (output(SOUND, OWN), "", 0, ["audited 1 packages: 0 known vulnerabilities"]),
        (
            output(SOUND, FLAWED, OWN, ABSENT),
            "Found 2 known vulnerabilities in 1 package",
            1,
            [
                "audited 2 packages: 2 known vulnerabilities",
                "jinja2 2.4.1: PYSEC-2014-8, fixed in 2.7.2",
                "jinja2 2.4.1: PYSEC-2099-1, fixed in none",
                "not in the database: markupsafe",
            ],
        ),
        (output(OWN, ABSENT), "", 0, ["skipped: the database of pip-audit answers for none of 1 packages"]),
        (
            "",
            "Traceback\nrequests.exceptions.ConnectionError: Failed to resolve 'pypi.org'\n",
            0,
            [
                "skipped: pip-audit cannot reach its database:"
                " requests.exceptions.ConnectionError: Failed to resolve 'pypi.org'"
            ],
        ),
        ("", "", 2, ["pip-audit failed: no message"]),
        ("[]", "No module named pip_audit\n", 2, ["pip-audit failed: No module named pip_audit"]),
    ],
)
def test_the_result_of_an_audit(text: str, errors: str, status: int, lines: list[str]) -> None:
    assert judge(text, errors) == (status, lines)


def test_the_tests_that_the_security_page_names_exist() -> None:
    named = re.findall(r"`(test_\w+\.py): (\w+)`", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))
    named = [(file, name) for file, name in named if file != "test_x.py"]
    absent = [
        f"{file}: {name}"
        for file, name in named
        if not any(f"def test_{name}(" in path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob(file))
    ]
    assert len(named) > 20 and absent == []
