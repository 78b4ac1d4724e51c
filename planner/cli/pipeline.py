"""`meshwright pipeline`: plans a pipeline from a layer profile."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

import costmodel
from profiles import ProfileError

from ..common.errors import PlanError
from ..common.units_text import bytes_text, seconds_text
from ..pipeline.published import CONVENTIONS, PLANNERS, Host, Machine, Outcome, Question, ask
from ..pipeline.published.readers.strict import load_json, mapping, sequence, whole
from .answer import Answer, progress
from .failure import profile_message
from .parameters import AsJson
from .table import table

MOST_DEVICES = 100_000  # planning takes a millisecond for each

ProfilePath = Annotated[
    Path,
    typer.Argument(
        metavar="PROFILE",
        help="PipeDream or DAPPLE text, Piper JSON (.gz too), one of AMP's arrays, Aceso's "
        "database (folder or .tar.gz), or a folder of Galvatron's profiles.",
    ),
]
Devices = Annotated[int | None, typer.Option("--devices", "-n", metavar="N", help="Devices.")]
Memory = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Memory of a device, such as 16GB or 8GiB.")
]
Bandwidth = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Bytes per second between devices, such as 25GB."),
]
PerHost = Annotated[
    int | None, typer.Option(metavar="N", help="Devices of a host; all on one if not given.")
]
HostBandwidth = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Bytes per second inside a host; as between if not given."),
]
Hosts = Annotated[
    Path | None,
    typer.Option(
        metavar="HOSTS.JSON",
        help="Unlike hosts, in place of the five options above: a list of objects with devices, "
        "memory_bytes, intra_bytes_per_s, inter_bytes_per_s and kind.",
    ),
]
PlannerName = Annotated[
    str, typer.Option("--planner", metavar="NAME", help=f"One of {', '.join(PLANNERS)}.")
]
ConventionName = Annotated[
    str | None,
    typer.Option(
        "--convention", metavar="NAME",
        help=f"Cost formula: {', '.join(CONVENTIONS)}; that of the profile's format if not "
        "given, flush for those of Aceso and Galvatron.",
    ),
]  # fmt: skip
Batch = Annotated[int | None, typer.Option(metavar="N", help="Samples of a step.")]
Microbatches = Annotated[
    int | None, typer.Option(metavar="N", help="Parts of the batch; chosen if not given.")
]
ProfileBatch = Annotated[
    int | None, typer.Option(metavar="N", help="Samples that the profile's times are for.")
]
Stages = Annotated[int | None, typer.Option(metavar="N", help="Use at most this many stages.")]
Model = Annotated[str | None, typer.Option(metavar="NAME", help="Model of a database.")]


def pipeline_command(
    profile: ProfilePath,
    devices: Devices = None,
    memory: Memory = None,
    bandwidth: Bandwidth = None,
    per_host: PerHost = None,
    host_bandwidth: HostBandwidth = None,
    hosts: Hosts = None,
    planner: PlannerName = "ours",
    convention: ConventionName = None,
    batch: Batch = None,
    microbatches: Microbatches = None,
    profile_batch: ProfileBatch = None,
    stages: Stages = None,
    model: Model = None,
    as_json: AsJson = False,
) -> Answer:
    """Plan a pipeline from measured layers.

    Exit status: 0 a plan was found, 1 nothing fits, 2 wrong use.
    """
    if hosts is not None:
        machine = _read_hosts(hosts)
    else:
        machine = _machine(devices, memory, bandwidth, per_host, host_bandwidth)
    if batch is None:
        raise _missing("--batch", "samples of a step")
    for flag, value in (("--profile-batch", profile_batch), ("--microbatches", microbatches)):
        if value is not None and value < 1:
            raise PlanError(
                f"must be at least 1, got {value}", kind="bad-option", where=flag,
                remedy="give a whole number above 0",
            )  # fmt: skip
    question = Question(
        path=profile, machine=machine, batch=batch, planner=planner, convention=convention,
        microbatches=microbatches, profile_batch=profile_batch, stages=stages, model=model,
    )  # fmt: skip
    with progress(as_json=as_json) as say:
        say(f"planning {profile.name} on {machine.devices} devices")
        found = ask(question)
    return Answer(found.data, lambda width: _page(found, width), 0 if found.feasible else 1)


def _machine(
    devices: int | None,
    memory: str | None,
    bandwidth: str | None,
    per_host: int | None,
    host_bandwidth: str | None,
) -> Machine:
    if devices is None:
        raise _missing("--devices", "how many there are")
    if memory is None:
        raise _missing("--memory", "of a device, such as 16GB")
    if bandwidth is None:
        raise _missing("--bandwidth", "bytes per second, such as 25GB")
    each = devices if per_host is None else per_host
    for flag, value in (("--devices", devices), ("--per-host", each)):
        if not 1 <= value <= MOST_DEVICES:
            raise PlanError(
                f"must be 1 to {MOST_DEVICES:,}, got {value}", kind="bad-option", where=flag,
                remedy="give a whole number of devices",
            )  # fmt: skip
    if devices % each:
        raise PlanError(
            f"{devices} devices are no whole number of hosts of {each}", kind="bad-option",
            where="--per-host", remedy="choose a divisor of the number of devices",
        )  # fmt: skip
    between = _bytes("--bandwidth", bandwidth)
    inside = _bytes("--host-bandwidth", host_bandwidth) if host_bandwidth else between
    host = Host(each, _bytes("--memory", memory), inside, between)
    return Machine((host,) * (devices // each))


def _read_hosts(path: Path) -> Machine:
    keys = ("devices", "memory_bytes", "intra_bytes_per_s", "inter_bytes_per_s")
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(
            f"cannot be read: {error}", kind="bad-option", where=f"--hosts {path}",
            remedy="check the path",
        ) from error  # fmt: skip
    found: list[Host] = []
    for entry in sequence(path.name, load_json(path.name, text)):
        item: dict[str, Any] = dict(mapping(path.name, entry, required=keys))
        numbers = [whole(path.name, key, item[key], least=1) for key in keys]
        kind = str(item.get("kind", ""))
        found.append(Host(numbers[0], numbers[1], numbers[2], numbers[3], kind))
    if not found:
        raise PlanError("lists no hosts", kind="bad-option", where=f"--hosts {path}",
                        remedy="write one row for each host")  # fmt: skip
    return Machine(tuple(found))


def _bytes(flag: str, text: str) -> int:
    try:
        return costmodel.parse_bytes(text)
    except ProfileError as error:
        raise PlanError(
            profile_message(error), kind="bad-option", where=flag, remedy=error.remedy
        ) from error


def _missing(flag: str, what: str) -> PlanError:
    return PlanError("is missing", kind="bad-option", where=flag, remedy=f"give it: {what}")


def _page(found: Outcome, width: int | None) -> Text:
    title = f"{found.planner} under the convention {found.convention}"
    notes = "".join(f"\n  {note}" for note in found.notes)
    if not found.feasible or found.step_s is None or found.seconds_per_sample is None:
        lines = [f"{title}: nothing fits"]
        if found.needed_bytes is not None and found.memory_bytes is not None:
            lines.append(
                f"  least memory with which something fits: {bytes_text(found.needed_bytes)}, "
                f"{bytes_text(found.needed_bytes - found.memory_bytes)} more than there is"
            )
        return Text("\n".join(lines) + notes)
    proof = "no plan is better" if found.exact else "best found"
    head = (
        f"{title}\n  step {seconds_text(found.step_s)}, {seconds_text(found.seconds_per_sample)} "
        f"per sample, {found.microbatches} micro-batches, {found.schedule}; {proof}; "
        f"searched {seconds_text(found.search_s)}{notes}\n\n"
    )
    rows = [
        (
            str(index), _layers(stage.nodes), str(stage.devices), str(stage.data_parallel),
            str(stage.tensor_parallel), stage.recompute, bytes_text(stage.peak_bytes),
        )
        for index, stage in enumerate(found.stages)
    ]  # fmt: skip
    columns = ("stage", "layers", "devices", "data", "tensor", "recompute", "peak")
    return Text(head).append_text(table(columns, rows, width))


def _layers(nodes: tuple[int, ...]) -> str:
    """Layer indices in words, consecutive ones as first-last."""
    runs: list[list[int]] = []
    for v in nodes:
        if runs and v == runs[-1][1] + 1:
            runs[-1][1] = v
        else:
            runs.append([v, v])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
