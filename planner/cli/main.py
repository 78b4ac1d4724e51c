"""The program `meshwright`: the table of its commands."""

from __future__ import annotations

from typing import Annotated

import typer

from .answer import leave_terminal, own_stdout
from .cache import clear_command, info_command
from .clusters import clusters_command, version_command
from .command import Command, Group
from .compare import compare_command
from .explain import explain_command
from .export import export_command
from .pipeline import pipeline_command
from .plan import plan_command
from .profile import profile_command
from .report import report_command
from .reshard import reshard_command
from .rules import audit_command, generate_command, list_command
from .rules import verify_command as verify_rules_command
from .simulate import simulate_command
from .solve import solve_command
from .verify import verify_command


def examples(*lines: str) -> str:
    """Examples for the end of a help page; the first character keeps Click from joining lines."""
    return "\b\nExamples:\n" + "\n".join(f"  meshwright {line}" for line in lines)


app = typer.Typer(
    name="meshwright",
    cls=Group,
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


app.command(
    "plan",
    cls=Command,
    epilog=examples(
        "plan model.py:step --cluster 8xh100",
        "plan model.py:step -c 8xh100 -o plan.json",
        "plan pkg.train:step -c 64xv100-16gb:8 --memory 14GB",
        "plan model.py:step -c 8xh100 --pin 'params/*/w1=-,8'",
        "plan model.py:step -c 8xh100 --forbid 'batch/*=1'",
        "plan model.py:step -c host --mesh 2x4 --json",
        "plan model.py:step -c 8xh100 --sweep devices=8..512,batch=64..256 -o sweep.json",
    ),
)(plan_command)
app.command(
    "explain",
    cls=Command,
    epilog=examples(
        "explain plan.json",
        "explain plan.json params/layers/0/w1",
        "explain plan.json '*/w1' --json",
        "explain plan.json dot_general",
        "explain plan.json --devices 4 -o four.json",
    ),
)(explain_command)
app.command(
    "compare",
    cls=Command,
    epilog=examples("compare a.json b.json", "compare 8xh100.json 64xh100.json --json"),
)(compare_command)
app.command(
    "reshard",
    cls=Command,
    epilog=examples(
        "reshard 64.json 56.json",
        "reshard 64.json 56.json --lost 8-15",
        "reshard old.json new.json --json",
    ),
)(reshard_command)
app.command(
    "verify",
    cls=Command,
    epilog=examples(
        "verify model.py:step plan.json",
        "verify model.py:step plan.json --compiler gpu-aot --json",
    ),
)(verify_command)
app.command(
    "profile",
    cls=Command,
    epilog=examples(
        "profile --quick",
        "profile --device gpu --export h100.json",
        "profile --devices 4 --json",
        "profile --merge other.json",
    ),
)(profile_command)
app.command(
    "simulate",
    cls=Command,
    epilog=examples("simulate plan.json", "simulate schedule.json --json"),
)(simulate_command)
app.command(
    "pipeline",
    cls=Command,
    epilog=examples(
        "pipeline bert.json --devices 64 --memory 8GiB --bandwidth 25GiB --batch 1920",
        "pipeline vgg.txt -n 16 --memory 16GB --bandwidth 3GB --batch 2048 --planner dapple",
        "pipeline gpt2_P3_1.npy --hosts hosts.json --batch 32 --convention flush --json",
        "pipeline aceso.tar.gz --model gpt_1_3B -n 4 --memory 28GiB --bandwidth 5GB --batch 1024",
    ),
)(pipeline_command)
app.command(
    "report",
    cls=Command,
    epilog=examples(
        "report plan.json -o plan.html",
        "report plan.json -o plan.html --trace plan.perfetto.json",
    ),
)(report_command)
app.command(
    "solve",
    cls=Command,
    epilog=examples(
        "solve instance.json.gz",
        "solve instance.json --time-limit 180 -o solution.json",
        "solve instance.json --json",
    ),
)(solve_command)
app.command(
    "export",
    cls=Command,
    epilog=examples(
        "export plan.json --to shardings -o shardings.json",
        "export plan.json --to stablehlo -o plan.mlir model.py:step",
        "export plan.json --to deepspeed -o ds_config.json --json",
    ),
)(export_command)
app.command("clusters", cls=Command, epilog=examples("clusters", "clusters --json"))(
    clusters_command
)
app.command("version", cls=Command, epilog=examples("version", "version --json"))(version_command)

cache = typer.Typer(no_args_is_help=True, help="Show or clear the store of plans.")
app.add_typer(cache, name="cache")
cache.command("info", cls=Command, epilog=examples("cache info", "cache info --json"))(info_command)
cache.command("clear", cls=Command, epilog=examples("cache clear"))(clear_command)

rules = typer.Typer(no_args_is_help=True, help="Judge rules that rewrite programs.")
app.add_typer(rules, name="rules")
rules.command("list", cls=Command, epilog=examples("rules list", "rules list --json"))(list_command)
rules.command("verify", cls=Command, epilog=examples("rules verify", "rules verify --json"))(
    verify_rules_command
)
rules.command(
    "generate",
    cls=Command,
    epilog=examples(
        "rules generate --ops 2", "rules generate --set parallel --ops 3 -o rules.json"
    ),
)(generate_command)
rules.command(
    "audit",
    cls=Command,
    epilog=examples("rules audit graph_subst.json", "rules audit taso_graph_subst.pb --json"),
)(audit_command)


def main() -> None:
    """Runs the command line and ends the process."""
    own_stdout()
    try:
        app(prog_name="meshwright")
    finally:
        leave_terminal()


if __name__ == "__main__":
    main()
