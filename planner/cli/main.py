"""The program `meshwright`: the table of its commands."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .answer import leave_terminal, own_stdout
from .command import Group
from .lazy_command import Entry, examples, lazy

COMMANDS: Mapping[str, Entry] = {
    "plan": Entry(
        "plan:plan_command",
        "Find the fastest sharding that fits in memory.",
        (
            "plan model.py:step --cluster 8xh100",
            "plan model.py:step -c 8xh100 -o plan.json",
            "plan pkg.train:step -c 64xv100-16gb:8 --memory 14GB",
            "plan model.py:step -c 8xh100 --pin 'params/*/w1=-,8'",
            "plan model.py:step -c 8xh100 --forbid 'batch/*=1'",
            "plan model.py:step -c host --mesh 2x4 --json",
            "plan model.py:step -c 8xh100 --sweep devices=8..512,batch=64..256 -o sweep.json",
        ),
    ),
    "explain": Entry(
        "explain:explain_command",
        "Explain the sharding of a tensor or op, or plan under other conditions.",
        (
            "explain plan.json",
            "explain plan.json params/layers/0/w1",
            "explain plan.json '*/w1' --json",
            "explain plan.json dot_general",
            "explain plan.json --devices 4 -o four.json",
        ),
    ),
    "compare": Entry(
        "compare:compare_command",
        "Show two plans of one program, or a plan and hand-written shardings, side by side.",
        (
            "compare a.json b.json",
            "compare 8xh100.json 64xh100.json --json",
        ),
    ),
    "reshard": Entry(
        "reshard:reshard_command",
        "Show which arrays move where when training goes on under another plan.",
        (
            "reshard 64.json 56.json",
            "reshard 64.json 56.json --lost 8-15",
            "reshard old.json new.json --json",
        ),
    ),
    "verify": Entry(
        "verify:verify_command",
        "Compile a plan and hold its collectives and memory against the prediction.",
        (
            "verify model.py:step plan.json",
            "verify model.py:step plan.json --compiler gpu-aot --json",
        ),
    ),
    "profile": Entry(
        "profile:profile_command",
        "Measure the devices present, so that plans for them are chosen from measurements.",
        (
            "profile --quick",
            "profile --device gpu --export h100.json",
            "profile --devices 4 --json",
            "profile --merge other.json",
        ),
    ),
    "simulate": Entry(
        "simulate:simulate_command",
        "Price a plan again, or run a pipeline schedule on paper.",
        (
            "simulate plan.json",
            "simulate schedule.json --json",
        ),
    ),
    "pipeline": Entry(
        "pipeline:pipeline_command",
        "Plan a pipeline from measured layers.",
        (
            "pipeline bert.json --devices 64 --memory 8GiB --bandwidth 25GiB --batch 1920",
            "pipeline vgg.txt -n 16 --memory 16GB --bandwidth 3GB --batch 2048 --planner dapple",
            "pipeline gpt2_P3_1.npy --hosts hosts.json --batch 32 --convention flush --json",
            "pipeline aceso.tar.gz --model gpt_1_3B -n 4 --memory 28GiB --bandwidth 5GB "
            "--batch 1024",
        ),
    ),
    "report": Entry(
        "report:report_command",
        "Write a plan as one HTML page: what is split how, where time and memory go.",
        (
            "report plan.json -o plan.html",
            "report plan.json -o plan.html --trace plan.perfetto.json",
        ),
    ),
    "solve": Entry(
        "solve:solve_command",
        "Solve an intra-op problem in the form of the ASPLOS 2025 contest.",
        (
            "solve instance.json.gz",
            "solve instance.json --time-limit 180 -o solution.json",
            "solve instance.json --json",
        ),
    ),
    "export": Entry(
        "export:export_command",
        "Write a plan for another runtime.",
        (
            "export plan.json --to shardings -o shardings.json",
            "export plan.json --to stablehlo -o plan.mlir model.py:step",
            "export plan.json --to deepspeed -o ds_config.json --json",
        ),
    ),
    "clusters": Entry(
        "clusters:clusters_command",
        "List the devices that a cluster may be made of.",
        ("clusters", "clusters --json"),
    ),
    "version": Entry(
        "clusters:version_command",
        "Print the versions of the planner, JAX and Python.",
        ("version", "version --json"),
    ),
}
CACHE: Mapping[str, Entry] = {
    "info": Entry(
        "cache:info_command",
        "Show the contents of the plan store.",
        ("cache info", "cache info --json"),
    ),
    "clear": Entry(
        "cache:clear_command",
        "Remove all plans from the plan store; a damaged file is deleted.",
        ("cache clear",),
    ),
}
RULES: Mapping[str, Entry] = {
    "list": Entry(
        "rules:list_command",
        "List the rules of the catalogue, and what each is worth in floats and whole numbers.",
        ("rules list", "rules list --json"),
    ),
    "verify": Entry(
        "rules:verify_command",
        "Prove every rule of the catalogue anew, for every rank, axis and degree it stands for.",
        ("rules verify", "rules verify --json"),
    ),
    "generate": Entry(
        "rules:generate_command",
        "Find rules: all terms up to a size, those of equal value proved equal, implied ones "
        "dropped.",
        ("rules generate --ops 2", "rules generate --set parallel --ops 3 -o rules.json"),
    ),
    "audit": Entry(
        "rules:audit_command",
        "Say of every rule in a file whether it is proved, false or ill-formed, and why.",
        ("rules audit graph_subst.json", "rules audit taso_graph_subst.pb --json"),
    ),
}


class Commands(Group):
    """The table of commands as a group of commands."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for command in lazy(COMMANDS):
            self.add_command(command)
        for name, about, entries in (
            ("cache", "Show or clear the store of plans.", CACHE),
            ("rules", "Judge rules that rewrite programs.", RULES),
        ):
            group = TyperGroup(name=name, help=about, commands=lazy(entries),
                               no_args_is_help=True, rich_markup_mode=None)  # fmt: skip
            self.add_command(group)


app = typer.Typer(
    name="meshwright",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "plan model.py:step --cluster 8xh100 -o plan.json",
        "explain plan.json params/w1",
        "compare a.json b.json",
        "clusters",
        "--install-completion",
    ),
)

ShowTraceback = Annotated[
    bool, typer.Option("--traceback", help="Print the traceback of an error, to report a defect.")
]


@app.callback()
def meshwright(show_traceback: ShowTraceback = False) -> None:
    """Plan how a JAX program runs on many devices.

    Takes a function and a cluster. Returns a sharding for every tensor, with predicted time and
    memory and a bound on how much faster any plan could be.
    """


def main() -> None:
    """Runs the command line and ends the process."""
    own_stdout()
    # Python looks for cycles among all objects as it ends, half a second for JAX and the planner.
    atexit.register(gc.freeze)
    try:
        app(prog_name="meshwright")
    finally:
        leave_terminal()


if __name__ == "__main__":
    main()
