"""A ledger and a proposal for people, as tables on the terminal."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table

from fastpfrec_flwr.privacy.accountant import show
from fastpfrec_flwr.privacy.lines import Ledger
from fastpfrec_flwr.privacy.proposal import Proposal


def print_ledger(ledger: Ledger, console: Console) -> None:
    """Figures in a table, and under it why each of them holds and what it takes for granted."""
    setting = ledger.setting
    table = Table(
        "", "who sees", "what", "over", "epsilon", "delta",
        title=f"{setting.num_users:,} users, {setting.num_items:,} items, {setting.clients:,} clients a round",
    )  # fmt: skip
    for number, line in enumerate(ledger.lines, 1):
        delta = "-" if math.isinf(line.epsilon) else f"{line.delta:g}"
        table.add_row(str(number), line.observer, line.release, line.scope, show(line.epsilon), delta)
    console.print(table)
    for number, line in enumerate(ledger.lines, 1):
        console.print(
            f"{number}. {line.adjacency}; clip: {line.clip}. Why: {line.reason}. Assumed: {line.assumed}.",
            markup=False, highlight=False,
        )  # fmt: skip
    for note in ledger.notes:
        console.print(f"- {note}", markup=False, highlight=False)


def print_proposal(proposal: Proposal, now: float, console: Console) -> None:
    """The noise, and what the other knobs do from there.

    Parameters
    ----------
    now : noise-scale of the configuration.
    """
    line = proposal.line
    noise = proposal.deviation
    console.print(
        f"\nepsilon <= {proposal.target:g} against the {line.observer}, whole run: noise-scale = {proposal.noise_scale:g} "
        f"(now {now:g}) gives epsilon = {show(line.epsilon)}, delta = {line.delta:g}.\n"
        f"Noise of one coordinate of one upload: {noise:.3g}; the clip lets through {proposal.signal:.3g} "
        f"(root mean square): {noise / proposal.signal:,.0f} times less.",
        markup=False, highlight=False,
    )  # fmt: skip
    if not proposal.sendable:
        console.print(
            "Uploads with that much noise are refused where they arrive: lower clip and noise-scale together, their ratio is what "
            "protects, or take upload-precision = 'int8'.",
            markup=False, highlight=False,
        )  # fmt: skip
    table = Table("with that noise and", "epsilon")
    for what, epsilon in proposal.changes:
        table.add_row(what, show(epsilon))
    console.print(table)
