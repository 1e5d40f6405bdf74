"""The pytest plugin: a test with the marker fails if its simulator is inaccurate or worse than its baseline."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas.core.arrays.arrow.extension_types  # noqa: F401 - registered once a process; pytester forgets imports
import pytest

import tracebed.api as tb
from tests.oracles.validations import make_validation, write_suite
from tests.pages import without_pictures
from tracebed.validation.verdict import gate  # noqa: F401 - imported by the plugin only
from tracebed.validation.verdict.baseline import Baseline

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.usefixtures("without_pictures")

TEST = """
import pytest

@pytest.mark.tracebed({arguments})
def test_accuracy({fixture}):
    {body}
"""


@pytest.fixture(scope="module", autouse=True)
def _imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Import all that a validation imports: pytester forgets the imports of a session, so that each session would
    import again, and classes would exist twice in the tests after it.
    """
    folder = tmp_path_factory.mktemp("suite")
    with without_pictures():
        tb.validate(write_suite(folder, repetitions=2), folder / "out")


def session(
    pytester: pytest.Pytester, arguments: str, *options: str, fixture: str = "", body: str = "pass"
) -> pytest.RunResult:
    pytester.makepyfile(TEST.format(arguments=arguments, fixture=fixture, body=body))
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist", *options)


def test_a_test_of_an_accurate_simulator_passes_and_its_verdict_is_printed(pytester: pytest.Pytester) -> None:
    write_suite(pytester.path)
    body = "assert tracebed_validation.simulator.name == 'mine' and len(tracebed_validation.cases) == 2"
    result = session(pytester, "suite='suite.yaml'", "--strict-markers", fixture="tracebed_validation", body=body)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*= tracebed =*", "*::test_accuracy: mine: accurate. all 5 gated metrics*"])


def test_a_test_of_an_inaccurate_simulator_fails_with_metric_case_error_and_margin(pytester: pytest.Pytester) -> None:
    write_suite(pytester.path, 1.3)
    result = session(pytester, "'suite.yaml', simulator='mine'")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "simulator mine: inaccurate.*",
            "  wait, mean (s): *margin 10 %, at least 10 s, gate: inaccurate",
            "    worst case w?-fcfs: error +*margins (real *, predicted *, margin *)",
        ]
    )
    assert "Traceback" not in result.stdout.str()
    assert "pytest.fail" not in result.stdout.str()


def test_a_test_that_is_worse_than_the_baseline_fails(pytester: pytest.Pytester) -> None:
    write_suite(pytester.path, 1.02)
    Baseline.of([make_validation().to_json()]).save(pytester.path / "baseline.yaml")
    result = session(pytester, "suite='suite.yaml', baseline='baseline.yaml'")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["simulator mine: worse than the baseline.*", "  worse than the baseline: response, mean (s): *"]
    )


@pytest.mark.parametrize(
    ("inconclusive", "options", "expected"),
    [
        ("", [], {"failed": 1}),
        (", inconclusive='warn'", [], {"passed": 1, "warnings": 1}),
        (", inconclusive='pass'", [], {"passed": 1, "warnings": 0}),
        (", inconclusive='pass'", ["--tracebed-inconclusive", "fail"], {"failed": 1}),
    ],
)
def test_the_policy_decides_on_an_inconclusive_verdict(
    inconclusive: str, options: list[str], expected: dict[str, int], pytester: pytest.Pytester
) -> None:
    write_suite(pytester.path, repetitions=2)
    result = session(pytester, f"suite='suite.yaml'{inconclusive}", *options)
    result.assert_outcomes(**expected)
    result.stdout.fnmatch_lines(["*mine: inconclusive*"])


def test_the_body_of_a_test_fails_first(pytester: pytest.Pytester) -> None:
    write_suite(pytester.path, 1.3)
    result = session(pytester, "suite='suite.yaml'", body="assert 1 == 2")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*assert 1 == 2*"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("suite='missing.yaml'", "*missing.yaml: cannot read the experiment*"),
        ("suite='suite.yaml', simulator='mien'", "*mien*mine*"),
        ("'suite.yaml', 'mien'", "*mien*mine*"),
        ("suite='suite.yaml', policy='easy'", "*the marker tracebed has no argument policy*"),
        ("suite='suite.yaml', inconclusive='maybe'", "*inconclusive='maybe' is not fail, warn, pass*"),
        ("", "*needs @pytest.mark.tracebed(suite=FILE)*"),
    ],
)
def test_wrong_arguments_are_errors_of_one_line(arguments: str, message: str, pytester: pytest.Pytester) -> None:
    write_suite(pytester.path)
    result = session(pytester, arguments)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([message])


def test_two_tests_of_a_suite_share_its_validation(pytester: pytest.Pytester) -> None:
    write_suite(pytester.path)
    pytester.makepyfile(
        """
        import pytest

        pytestmark = pytest.mark.tracebed(suite="suite.yaml")
        seen = []

        def test_first(tracebed_validation):
            seen.append(tracebed_validation)

        def test_second(tracebed_validation):
            assert seen[0] is tracebed_validation
        """
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist").assert_outcomes(passed=2)


def test_pytest_loads_the_plugin_without_other_parts_of_tracebed(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import sys\n"
        "def pytest_sessionfinish(session):\n"
        "    found = [name for name in sys.modules if name.partition('.')[0] in ('tracebed', 'numpy', 'pandas')]\n"
        "    print('loaded', *sorted(found))\n"
    )
    (tmp_path / "test_x.py").write_text("def test_x(): pass\n")
    without = [word for plugin in ("cacheprovider", "xdist", "hypothesispytest") for word in ("-p", f"no:{plugin}")]
    command = [sys.executable, "-m", "pytest", "-q", "-s", *without]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    (line,) = [line for line in done.stdout.splitlines() if "loaded" in line]
    assert line.split("loaded")[1].split() == ["tracebed", "tracebed.testing", "tracebed.testing.plugin"]
    assert "PytestAssertRewriteWarning" not in done.stdout + done.stderr
