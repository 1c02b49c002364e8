"""`fastpfrec device`: what a device keeps of its users, for whoever owns it."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated

import typer

from fastpfrec_flwr.foreseen import plain_errors

app = typer.Typer(no_args_is_help=True, help="What a real device keeps: look at it, wipe it.")

StateDir = Annotated[
    str, typer.Option("--state-dir", help="As in the SuperNode's node-config; empty: the user's own folder.")
]

WHAT_STAYS = """\
What cannot be taken back: uploads that have been sent, and what the item table has learned from them; sums of metrics and losses.
If this device trains again it draws a new secret: its new false items and its old ones together tell more than either alone."""


@app.command()
def show(state_dir: StateDir = "", as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """Show which trainings this device took part in, and what its uploads have cost."""
    import json

    from fastpfrec_flwr.client.device import FILE, Device

    root = _root(state_dir)
    if not (root / FILE).is_file():
        typer.echo(f"{root}: no device has kept anything here")
        raise typer.Exit(1)
    with plain_errors():
        device = Device(root)
    trainings, users = device.trainings(), device.num_users()
    device.close()
    if as_json:
        plain = [{**each, "epsilon": _number(each["epsilon"])} for each in trainings]
        typer.echo(json.dumps({"state_dir": str(root), "users": users, "trainings": plain}, indent=2))
        return
    from rich.table import Table

    from fastpfrec_flwr.console import plain_console

    table = Table(
        "training",
        "phase",
        "users",
        "uploads",
        "last round",
        "when",
        "epsilon (most of a user)",
        "state",
        title=str(root),
    )
    for each in trainings:
        table.add_row(
            each["training"], each["phase"], str(each["users"]), str(each["uploads"]), str(each["round"]),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(each["at"])), f"{each['epsilon']:,.6g}",
            "kept" if each["kept"] else "gone",
        )  # fmt: skip
    plain_console().print(table)
    typer.echo(f"{users} users have been on this device")


@app.command()
def forget(
    state_dir: StateDir = "",
    training: Annotated[str, typer.Option(help="Only this training's state; its uploads stay in the book.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Wipe private vectors, deviations, the secret of the false items and the book of uploads. Stop the SuperNode first."""
    from fastpfrec_flwr.client.device import forget as wipe

    root = _root(state_dir)
    what = f"training {training} in {root}" if training else f"everything that this device keeps in {root}"
    if not yes and not typer.confirm(f"Wipe {what}?"):
        raise typer.Exit(1)
    with plain_errors():
        removed = wipe(root, training)
    for path in removed:
        typer.echo(f"wiped {path}")
    if not removed:
        typer.echo(f"{root}: nothing of {'this training' if training else 'a device'} is there")
    typer.echo(WHAT_STAYS)


def _root(state_dir: str) -> Path:
    if state_dir:
        return Path(state_dir).expanduser().absolute()
    from fastpfrec_flwr.client.own_data import default_state_root

    return default_state_root()


def _number(epsilon: float) -> float | str:
    return "infinity" if math.isinf(epsilon) else epsilon
