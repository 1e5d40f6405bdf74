"""pytest plugin: tests of the accuracy of simulators. pytest loads it when tracebed is installed.

    @pytest.mark.tracebed(suite="suite.yaml", simulator="mine", inconclusive="warn")
    def test_accuracy(tracebed_validation):
        assert tracebed_validation.metrics[0].z < 0.5     # optional: further conditions

A test with the marker validates the simulator over the cases of the suite, and fails if a gated metric is inaccurate,
or if `baseline` is given and a metric is worse. pytest imports this module at its start, so other parts of tracebed are
imported when a test needs them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tracebed.api import Validation
    from tracebed.validation.verdict.gate import Gate

MARKER = "tracebed"
FIXTURE = "tracebed_validation"
PROPERTY = "tracebed_verdict"  # name of the verdict among the properties of a test, which JUnit reports have, too
POLICIES = ("fail", "warn", "pass")
HELP = (
    f"{MARKER}(suite, simulator=None, inconclusive='fail', baseline=None, output=None): validate a simulator over the "
    "cases of a suite file, and fail if it is inaccurate or worse than the baseline. Paths are relative to the file of "
    "the test. simulator: name in the suite file, not needed for a suite with one simulator. inconclusive: fail, warn "
    "or pass. output: folder of the results; by default a temporary one."
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--tracebed-inconclusive`."""
    group = parser.getgroup("tracebed", "accuracy of simulators")
    group.addoption(
        "--tracebed-inconclusive",
        choices=POLICIES,
        help="Result of tests whose verdict is inconclusive, in place of the value in their markers.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", HELP)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give each test with the marker the fixture, so that the test may have an empty body."""
    if item.get_closest_marker(MARKER) and isinstance(item, pytest.Function) and FIXTURE not in item.fixturenames:
        item.fixturenames.append(FIXTURE)


@pytest.fixture(scope="session")
def _tracebed_validations(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Validation]]:
    """Return a function that validates the simulators of a suite; several tests of one suite share the result."""
    found: dict[tuple[Path, Path | None], dict[str, Validation]] = {}

    def validations(suite: Path, output: Path | None) -> dict[str, Validation]:
        import tracebed.api as tb

        if (suite, output) not in found:
            folder = output or tmp_path_factory.mktemp("tracebed")
            found[suite, output] = tb.validate(suite, folder, case_pages=output is not None)
        return found[suite, output]

    return validations


@pytest.fixture
def tracebed_validation(
    request: pytest.FixtureRequest, _tracebed_validations: Callable[..., dict[str, Validation]]
) -> Validation:
    """Validation of the simulator that the marker `tracebed` of the test names."""
    from tracebed.ground.errors import TracebedError
    from tracebed.ground.registry import unknown
    from tracebed.validation.verdict.gate import outcome

    options = _options(request.node)
    try:
        found = _tracebed_validations(options["suite"], options["output"])
        name = options["simulator"] or next(iter(found))
        if name not in found:
            raise unknown("simulator", name, list(found))
        if options["simulator"] is None and len(found) > 1:
            raise pytest.UsageError(f"the suite has several simulators ({', '.join(found)}): set simulator=")
    except TracebedError as error:
        pytest.fail(str(error), pytrace=False)
    validation = found[name]
    with contextlib.suppress(TracebedError):  # an invalid baseline fails the test itself
        result = outcome(_judgment(options, validation), validation)
        request.node.user_properties.append((PROPERTY, f"{name}: {result}. {validation.headline}"))
    return validation


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Run a test, then fail it if its marker names a simulator that is inaccurate or worse than its baseline."""
    result = yield
    if pyfuncitem.get_closest_marker(MARKER):
        arguments: dict[str, Any] = pyfuncitem.funcargs
        _gate(pyfuncitem, arguments[FIXTURE])
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the verdict of each test with the marker, whether or not the test failed."""
    lines = [
        f"{report.nodeid}: {text}"
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, text in report.user_properties
        if name == PROPERTY
    ]
    if lines:
        terminalreporter.section("tracebed")
        for line in lines:
            terminalreporter.write_line(line)


def _options(item: pytest.Item) -> dict[str, Any]:
    """Return the arguments of the marker of a test. Raises pytest.UsageError if they are invalid."""
    marker = item.get_closest_marker(MARKER)
    defaults = {"suite": None, "simulator": None, "inconclusive": "fail", "baseline": None, "output": None}
    given = {**dict(zip(defaults, marker.args, strict=False)), **marker.kwargs} if marker else {}
    if given.get("suite") is None:
        raise pytest.UsageError(f"{item.nodeid}: the fixture {FIXTURE} needs @pytest.mark.{MARKER}(suite=FILE)")
    if further := given.keys() - defaults.keys():
        raise pytest.UsageError(f"{item.nodeid}: the marker {MARKER} has no argument {', '.join(sorted(further))}")
    options = defaults | given
    chosen = item.config.getoption("tracebed_inconclusive")
    options["inconclusive"] = chosen or options["inconclusive"]
    if options["inconclusive"] not in POLICIES:
        raise pytest.UsageError(f"{item.nodeid}: inconclusive={options['inconclusive']!r} is not {', '.join(POLICIES)}")
    for name in ("suite", "baseline", "output"):
        if options[name] is not None:
            options[name] = item.path.parent / options[name]
    return options


def _judgment(options: dict[str, Any], validation: Validation) -> Gate:
    """Return the gate of a simulator, by its baseline if there is one. Raises TracebedError if that is invalid."""
    from tracebed.validation.verdict.baseline import Baseline
    from tracebed.validation.verdict.gate import Gate, OnInconclusive

    findings = list(Baseline.load(options["baseline"]).check(validation)) if options["baseline"] else []
    return Gate([validation], OnInconclusive(options["inconclusive"]), findings)


def _gate(item: pytest.Function, validation: Validation) -> None:
    """Fail the test, or emit a warning, as the policy for the verdict on `validation` requires."""
    from tracebed.ground.errors import ExitCode, TracebedError
    from tracebed.validation.verdict.gate import OnInconclusive, gate, outcome
    from tracebed.validation.verdict.rule import Verdict

    try:
        judgment = _judgment(_options(item), validation)
    except TracebedError as error:
        pytest.fail(str(error), pytrace=False)
    text = "\n".join(_lines(judgment, validation, outcome(judgment, validation)))
    if gate(judgment) is not ExitCode.OK:
        pytest.fail(text, pytrace=False)
    warned = [finding.text for finding in judgment.findings]
    if validation.verdict is Verdict.INCONCLUSIVE and judgment.inconclusive is OnInconclusive.WARN:
        warned.append(text)
    for each in warned:
        item.warn(pytest.PytestWarning(each))


def _lines(judgment: Gate, validation: Validation, result: str) -> Iterator[str]:
    """Yield the lines of a failure: the result, each gated metric that is not accurate, and its worst case."""
    yield f"simulator {validation.simulator.name}: {result}. {validation.headline}"
    yield from (f"  worse than the baseline: {finding.text}" for finding in judgment.findings if finding.failed)
    for metric in validation.metrics:
        if metric.gate and metric.verdict != "accurate":
            yield f"  {metric.sentence}"
            if (case := metric.worst) is not None:
                yield (
                    f"    worst case {case.case}: error {case.z:+.2f} margins "
                    f"(real {case.real_mean:.6g}, predicted {case.predicted:.6g}, margin {case.margin:.6g})"
                )
