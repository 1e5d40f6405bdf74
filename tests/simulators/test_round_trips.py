"""What one command writes, the others read: imports of each format, and exports of each kind of run and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tracebed.api as tb
from tests.commands import call
from tests.simulators.test_amte import LOG as AMTE
from tests.simulators.test_import_simulators import PLAN, gantt
from tests.simulators.test_mallob import LOGS as MALLOB
from tests.simulators.test_simulate_elastisim import FILES as ELASTISIM
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import ExitCode, InputError
from tracebed.validation.export import export
from tracebed.validation.export.exporter import EXPORTERS
from tracebed.validation.simulators.reading import form_of
from tracebed.validation.simulators.simulator import SIMULATORS

ENDED = "9.000 7 TIMEOUT #100001 7.0 <= [0]\n"  # exports have no place for the start of a job that does not end
FILES: dict[str, dict[str, str]] = {
    "csv": {"jobs.csv": "id,submit,start,end,nodes,held_nodes\na,0,0,60,2,0-1\nb,5,60,90,1,0\n"},
    "batsim": {
        "jobs.csv": (
            "job_id,submission_time,requested_number_of_resources,requested_time,success,starting_time,"
            "execution_time,finish_time,waiting_time,allocated_resources\n"
            "1,0,2,-1,1,0,60,60,0,0-1\n2,5,1,-1,1,60,30,90,55,0\n"
        )
    },
    "elastisim": {name: text for name, text in ELASTISIM.items() if name != "mapping.csv"},
    "accasim": {"sched-w.swf": PLAN},
    "amte": {"malleableSchedule.csv": AMTE},
    "mallob": {
        f"{rank}/{name}": text + ENDED * (name == "log.7")
        for rank, files in MALLOB.items()
        for name, text in files.items()
    },
    "swf": {"log.swf": "; MaxNodes: 4\n1 0 0 10 1 -1 -1 1 20 -1 1 1 1 1 1 1 -1 -1\n"},
}
"""Importer -> the files of a small output."""


def sample(form: str, folder: Path) -> Path:
    """Write a small output of a program, and return its file or folder."""
    if form == "oar-gantt":
        return gantt(folder / "oar.json")
    for name, text in FILES[form].items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder if len(FILES[form]) > 1 else folder / next(iter(FILES[form]))


NEED_A_WORKLOAD = ("cqsim", "shockwave")
IMPORTERS = [
    name for name in SIMULATORS.names() if name not in NEED_A_WORKLOAD and SIMULATORS.load(name).read is not None
]
"""All but those whose files mean nothing without a workload: `test_import_simulators.py`, `test_shockwave.py`."""


def test_each_importer_has_a_sample() -> None:
    assert set(IMPORTERS) <= FILES.keys() | {"oar-gantt"}


def compared(real: str, path: Path, form: str, folder: Path) -> None:
    """Compare the real run of a file with the file as a prediction: a verdict, and no error."""
    predicted = str(folder / "predicted")
    words = ("import", path, "--as", "predicted", "--from", form, "--workload", real, "-o", predicted)
    assert call(*words).exit_code == 0
    result = call("compare", "--real", real, "--predicted", predicted)
    assert (result.exception, result.return_value) == (None, ExitCode.INCONCLUSIVE)  # of one repetition


@pytest.mark.parametrize("form", [*IMPORTERS, "swf"])
def test_what_import_writes_the_other_commands_read(form: str, tmp_path: Path) -> None:
    place = tmp_path / "output"
    place.mkdir()
    path = sample(form, place)
    assert form_of(path) == form
    run = str(tmp_path / "run")
    assert call("import", str(path), "--as", "real", "--from", form, "-o", run).exit_code == 0
    assert call("metrics", run).exit_code == 0
    compared(run, path, form, tmp_path)
    for to in EXPORTERS.names():
        exported = tmp_path / f"exported-{to}.csv"
        assert call("export", run, "--to", to, "-o", str(exported)).exit_code == 0, to
    before = tb.import_run(path, side="real", form=form).jobs
    for to, kind in (("evalys", "batsim"), ("csv", "csv"), ("swf", "swf")):
        back = tb.import_run(tmp_path / f"exported-{to}.csv", side="real", form=kind, workload=run).jobs
        for column in ("start", "end"):
            known = np.isfinite(before[column].to_numpy(dtype=float))
            np.testing.assert_allclose(back[column][known], before[column][known], atol=1e-6, err_msg=to)


def test_a_log_of_amte_is_read_with_its_resizes_by_each_command(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(AMTE)
    run = tb.import_run(tmp_path / "log.csv", side="real")
    run.save(tmp_path / "run")
    again = tb.Run.load(tmp_path / "run")
    assert len(again.resizes) == 2
    assert again.metrics()["utilization"] == pytest.approx(run.metrics()["utilization"])
    assert "expand" in call(
        "export", str(tmp_path / "run"), "--to", "csv", "-o", str(tmp_path / "jobs.csv")
    ).output or ((tmp_path / "jobs.csv").read_text().count("malleable") == 3)


# -- malleable runs


def malleable(seed: int, jobs: int = 40) -> tuple[Workload, tb.Run]:
    workload = tb.make_malleable(tb.generate("cirne", jobs=jobs, nodes=16, seed=seed), 1.0, seed=seed)
    return workload, tb.simulate(workload, "pref")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=10)
@given(seed=st.integers(0, 1000))
def test_a_malleable_run_survives_evalys_and_back(tmp_path: Path, seed: int) -> None:
    workload, run = malleable(seed)
    path = tmp_path / "jobs.csv"
    export(run, "evalys", path, replace=True)
    back = tb.import_run(path, side="predicted", workload=workload, nodes=16)
    assert not back.info.unknown
    assert back.jobs["job_id"].tolist() == run.jobs["job_id"].tolist()
    np.testing.assert_allclose(back.jobs[["start", "end"]], run.jobs[["start", "end"]], atol=1e-6)
    columns = ["job_id", "node", "count", "start", "end"]
    held = [
        each.allocations[each.allocations["end"] > each.allocations["start"]]
        .sort_values(["job_id", "start", "node"], ignore_index=True)[columns]
        .astype({"job_id": "str"})
        for each in (run, back)
    ]
    assert _node_seconds(held[0]) == pytest.approx(_node_seconds(held[1]))
    assert back.metrics()["utilization"] == pytest.approx(run.metrics()["utilization"])
    changed = run.allocations.groupby("job_id")[["start", "end"]].nunique().max(axis=1) > 1
    assert set(back.resizes["job_id"]) <= set(changed.index[changed])


def test_a_malleable_run_on_an_unknown_number_of_nodes_keeps_its_resizes(tmp_path: Path) -> None:
    """The table of evalys does not say how many nodes there are: the import may lack `--nodes`."""
    _, run = malleable(3)
    export(run, "evalys", tmp_path / "jobs.csv")
    back = str(tmp_path / "back")
    assert call("import", str(tmp_path / "jobs.csv"), "--as", "real", "-o", back).exit_code == 0
    known = tb.import_run(tmp_path / "jobs.csv", side="real", nodes=16)
    read = tb.Run.load(back)
    assert set(read.info.unknown) == {"nodes", "allocations"}
    assert len(read.resizes) and read.resizes.equals(known.resizes)
    assert call("metrics", back).exit_code == 0
    compared(back, tmp_path / "jobs.csv", "batsim", tmp_path)


def _node_seconds(rows: pd.DataFrame) -> dict[str, float]:
    return (rows["count"] * (rows["end"] - rows["start"])).groupby(rows["job_id"]).sum().round(3).to_dict()


def test_no_table_says_from_when_to_when_a_resized_job_held_its_nodes(tmp_path: Path) -> None:
    workload, run = malleable(3)
    assert len(run.resizes)
    notes = export(run, "csv", tmp_path / "jobs.csv")
    assert "held_nodes does not say when (--to evalys does)" in notes[0]
    back = tb.import_run(tmp_path / "jobs.csv", side="predicted", workload=workload, nodes=16)
    assert back.info.unknown.keys() == {"allocations", "reconfigurations"}
    assert "from when to when" in back.info.unknown["allocations"]
    assert np.isnan(back.metrics()["utilization"])


def test_a_row_that_only_looks_like_an_allocation_stays_a_job(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    rows = ["1,0,1,-1,1,0,60,60,0,0", "1#1,60,1,-1,1,60,30,90,0,0", "1#2,61,1,-1,1,90,30,120,29,0"]
    path.write_text(FILES["batsim"]["jobs.csv"].splitlines()[0] + "\n" + "\n".join(rows) + "\n")
    assert tb.import_run(path, side="real", nodes=1).jobs["job_id"].tolist() == ["1", "1#1", "1#2"]


def test_a_job_that_was_started_again_has_the_times_of_its_last_run(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    rows = ["1,0,2,-1,1,5,20,25,5,0-1", "1#2,40,2,-1,1,40,20,60,0,0-1", "1#3,60,1,-1,1,60,30,90,0,1"]
    path.write_text(FILES["batsim"]["jobs.csv"].splitlines()[0] + "\n" + "\n".join(rows) + "\n")
    run = tb.import_run(path, side="real", nodes=2)
    assert run.jobs[["submit", "start", "end"]].values.tolist() == [[0.0, 40.0, 90.0]]
    assert run.resizes[["nodes_from", "nodes_to", "applied"]].values.tolist() == [[2, 1, 60.0]]
    assert "1 rows are allocations before a restart of the job, and are ignored" in run.info.warnings


# -- a log of malleable jobs as its own workload


def test_resized_jobs_are_no_workload_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "w.csv").write_text(AMTE)
    run = tb.import_run(tmp_path / "w.csv", side="real")
    assert any("resized jobs, whose run times hold for no single size" in text for text in run.info.warnings)
    assert np.isnan(run.jobs["run_time"][0])
    suite = "workloads: '*'\npolicies: [fcfs]\nrecorded: {runs: '{workload}.csv', from: amte}\nsimulators: {fcfs: {}}\n"
    (tmp_path / "suite.yaml").write_text(suite)
    said = call("validate", str(tmp_path / "suite.yaml"), "-o", str(tmp_path / "out"))
    assert said.exit_code != 0
    assert "1 resized job, with run times that hold for no single size" in str(said.exception)


def test_malleable_jobs_without_a_record_of_resizes_are_told(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("id,submit,start,end,nodes,kind\na,0,0,60,2,malleable\nb,5,60,90,1,rigid\n")
    run = tb.import_run(path, side="real", nodes=2)
    assert any("malleable jobs without a record of their resizes" in text for text in run.info.warnings)


# -- cores, hosts and units


def test_no_core_counts_as_a_node_in_silence(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("id,submit,start,end,cores\na,0,0,60,20\nb,5,60,90,1\n")
    said = [text for text in tb.import_run(path, side="real").info.warnings if "each core counts as a node" in text]
    assert said == [
        "1 job on several cores, and the cores of a node are unknown: each core counts as a node "
        "(import --cores-per-node sets them)"
    ]
    run = tb.import_run(path, side="real", cores_per_node=20)
    assert run.jobs["nodes"].tolist() == [1, 1]
    assert not any("each core" in text for text in run.info.warnings)


@pytest.mark.parametrize("name", ["num_hosts", "NumHosts", "nhosts", "Host Count", "number_of_nodes"])
def test_a_number_of_hosts_is_one_of_nodes(name: str, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(f"id,submit,start,end,cores,{name}\na,0,0,60,20,1\nb,5,60,90,40,2\n")
    assert tb.import_run(path, side="real").jobs["nodes"].tolist() == [1, 2]


@pytest.mark.parametrize(("unit", "factor"), [("ms", 1e3), ("us", 1e6), ("min", 1 / 60)])
@pytest.mark.parametrize("columns", ["id,start,end", "id,wait,run", "id,submit,start,end"])
def test_another_unit_is_an_error_with_the_option_for_it(
    unit: str, factor: float, columns: str, tmp_path: Path
) -> None:
    jobs = pd.DataFrame({"job_id": ["a", "b"], "submit_time": 0.0, "run_time": [6000.0, 1200.0], "nodes": 1})
    workload = Workload(jobs, Provenance(system=System(1, 1)))
    times = {"submit": 0.0, "start": [0.0, 6000.0], "end": [6000.0, 7200.0], "wait": [0.0, 6000.0]}
    times |= {"run": [6000.0, 1200.0]}
    table = pd.DataFrame({"id": ["a", "b"]} | {name: times[name] for name in columns.split(",")[1:]})
    table.iloc[:, 1:] *= factor
    table.to_csv(tmp_path / "sim.csv", index=False)
    with pytest.raises(InputError, match="median ratio") as error:
        tb.import_run(tmp_path / "sim.csv", side="predicted", workload=workload, nodes=1)
    assert error.value.hint == f"the times seem to be in {unit}: give --unit {unit}"
    run = tb.import_run(tmp_path / "sim.csv", side="predicted", workload=workload, nodes=1, unit=unit)
    assert run.jobs["end"].tolist() == pytest.approx([6000.0, 7200.0])
