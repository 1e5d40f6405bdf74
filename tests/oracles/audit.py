"""Known vulnerabilities of the installed dependencies, by pip-audit: `tox -e audit`.

The exit status is 1 if there are vulnerabilities. Where the database of vulnerabilities cannot be reached, one line
says so and the exit status is 0, so that the check can be part of a pipeline without a network.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

COMMAND = [sys.executable, "-m", "pip_audit", "--local", "--format", "json", "--progress-spinner", "off"]
OWN = "tracebed"
"""The package that is not expected in the database."""

UNREACHABLE = ("ConnectionError", "Timeout", "ProxyError", "SSLError", "HTTPError", "ServiceError")
"""The errors of pip-audit without a connection to its database."""


def judge(output: str, errors: str) -> tuple[int, list[str]]:
    """Return the exit status and the lines to print, given the output (as JSON) and the errors of pip-audit."""
    try:
        packages: list[dict[str, Any]] = json.loads(output)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = (errors.strip().splitlines() or ["no message"])[-1][:300]
        if any(reason in errors for reason in UNREACHABLE):
            return 0, [f"skipped: pip-audit cannot reach its database: {last}"]
        return 2, [f"pip-audit failed: {last}"]
    found = [
        f"{package['name']} {package['version']}: {flaw['id']}, fixed in {' or '.join(flaw['fix_versions']) or 'none'}"
        for package in packages
        for flaw in package.get("vulns", ())
    ]
    unknown = [package["name"] for package in packages if "skip_reason" in package and package["name"] != OWN]
    audited = len(packages) - len(unknown) - any(package["name"] == OWN for package in packages)
    if not audited:
        return 0, [f"skipped: the database of pip-audit answers for none of {len(unknown)} packages"]
    lines = [f"audited {audited} packages: {len(found)} known vulnerabilities", *found]
    if unknown:
        lines.append(f"not in the database: {', '.join(sorted(unknown))}")
    return int(bool(found)), lines


def main() -> int:
    """Run pip-audit, print its result, and return the exit status."""
    done = subprocess.run(COMMAND, capture_output=True, text=True, check=False)
    status, lines = judge(done.stdout, done.stderr)
    sys.stdout.write("\n".join(lines) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
