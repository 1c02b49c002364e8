"""The ledger of a run: who sees what of a user, and what that costs. `docs/privacy.md` says the same in prose.

A line stands for one observer and one kind of release. Uploads have figures; sums that leave without noise are infinite, and
stand in lines of their own, so that neither hides the other.
"""

from __future__ import annotations

import math

from fastpfrec_flwr.privacy.accountant import randomised_response
from fastpfrec_flwr.privacy.lines import INTERACTION, Ledger, Line, Setting, user_adjacency
from fastpfrec_flwr.privacy.upload_lines import upload_lines


def build_ledger(setting: Setting) -> Ledger:
    """Every line of a setting."""
    return Ledger(setting, (*upload_lines(setting), *_graph_lines(setting), *_plain_sums(setting)), _notes(setting))


def _graph_lines(setting: Setting) -> list[Line]:
    """What the false items of the local graph hide by themselves, without the noise on the upload."""
    config = setting.config

    def line(epsilon: float, reason: str) -> Line:
        return Line(
            "everybody", "local graph", "whole run", INTERACTION, epsilon, 0.0, "not needed",
            "the device's secret stays on it; for each other set of interactions (a changed file, another cut of it) once more",
            reason,
        )  # fmt: skip

    if config.perturbation == "randomised-response":
        each = randomised_response(config.keep_prob, config.perturbation_prob)
        times = f", once in each of {setting.phases} trainings" if setting.phases > 1 else ""
        return [
            line(
                each * setting.phases,
                f"randomised response: max(ln(q/p), ln((1-p)/(1-q))) with q = {config.keep_prob:g}, "
                f"p = {config.perturbation_prob:g}, drawn once and kept{times}; all that training sends is made of the drawn "
                "items (metric sums are not)",
            )
        ]
    if config.perturbation == "none":
        return [line(math.inf, "no false items: the noise on the upload is all there is")]
    return [
        line(
            math.inf,
            f"{config.perturbation}: false items are added, but a true one is never left out, and the loss takes the true "
            "ones only; perturbation = 'randomised-response' is finite",
        )
    ]


def _plain_sums(setting: Setting) -> list[Line]:
    """What leaves without noise."""
    config = setting.config
    sums = {"metric sums": "hits and ranks of the users of a SuperNode, added up on it, no noise"}
    if config.report_loss:
        sums["train loss sums"] = "added up per SuperNode, no noise; report-loss = false sends none"
    return [
        Line(
            "server", release, "whole run", user_adjacency(config), math.inf, 0.0, "none",
            "a sum over a SuperNode's users hides one only from who does not know the others", reason,
        )
        for release, reason in sums.items()
    ]  # fmt: skip


def _notes(setting: Setting) -> tuple[str, ...]:
    return (
        "sampling: nothing is claimed. Trusted nodes see who takes part; the server itself asks the SuperNodes, and a phone is "
        "one user; a simulation's users train once per walk through all of them, which is no random sample"
        + (
            f" (a walk is {max(setting.num_users // max(setting.clients, 1), 1)} rounds)."
            if not setting.deployed
            else "."
        ),
        "server: sums are claimed where nodes hand it nothing but sums and counts (check = 'none', node-aggregator = 'mean'); a "
        "check looks at single uploads, and what it leaves out could tell.",
    )
