"""The ledger of a run: who sees what of a user, and what that costs. `docs/privacy.md` says the same in prose.

A line stands for one observer and one kind of release. Uploads have figures; sums that leave without noise are infinite, and
stand in lines of their own, so that neither hides the other.
"""

from __future__ import annotations

import math
from typing import Any

from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.privacy.accountant import (
    Bound,
    Cost,
    clients_beside,
    compose,
    randomised_response,
    shuffled,
)
from fastpfrec_flwr.privacy.ledger import laplace_upload
from fastpfrec_flwr.privacy.lines import INTERACTION, USER, Ledger, Line, Setting
from fastpfrec_flwr.privacy.mechanism import COUNT_UNIT


def upload_costs(config: RunConfig, num_items: int) -> tuple[Cost, Cost, str]:
    """Cost of one upload, what its count column adds in a user's first round, and what bounds it.

    Any two clipped uploads are at most twice the clip apart.
    """
    guarantee = laplace_upload(
        config.effective_noise_scale, config.row_clip, config.clip_norm, config.clip_kind == "l1",
        num_items, config.embedding_dim, config.upload == "dense",
    )  # fmt: skip
    if math.isinf(guarantee.epsilon):
        return Cost(math.inf, math.inf), Cost(0.0, 0.0), guarantee.reason
    scale = config.noise_scale
    bounds = [bound for bound in (config.clip_norm, config.row_clip * math.sqrt(num_items)) if bound > 0]
    cost = Cost(guarantee.epsilon, (2 * min(bounds) / scale) ** 2 / 2)
    counts = (
        Cost.of_laplace(scale, COUNT_UNIT * num_items, COUNT_UNIT * math.sqrt(num_items))
        if config.counted
        else Cost(0.0, 0.0)
    )
    return cost, counts, guarantee.reason


def upload_epsilons(config: RunConfig, num_items: int) -> tuple[float, float]:
    """Pure epsilon of one upload, and what its first one costs more; what a device's own budget counts."""
    cost, counts, _ = upload_costs(config, num_items)
    return cost.pure, counts.pure


def build_ledger(setting: Setting) -> Ledger:
    """Every line of a setting."""
    return Ledger(setting, (*_upload_lines(setting), *_graph_lines(setting), *_plain_sums(setting)), _notes(setting))


def _clip_words(config: RunConfig) -> str:
    words = [f"rows L2 <= {config.row_clip:g}"] if config.row_clip else []
    words += [f"upload {config.clip_kind.upper()} <= {config.clip_norm:g}"] if config.clip_norm else []
    return ", ".join(words) or "none"


def _upload_lines(setting: Setting) -> list[Line]:
    config = setting.config
    cost, counts, reason = upload_costs(config, setting.num_items)
    clip = _clip_words(config)
    whole = f"whole run, at most {setting.uploads} uploads"
    noise = "the device draws its noise from the operating system and keeps it" + (
        "" if setting.deployed else "; the seeded noise of a simulation protects nobody who knows the seed"
    )

    def line(observer: str, scope: str, bound: Bound, assumed: str, why: str) -> Line:
        # What the pure epsilon of an upload comes from is told where it is what counts.
        source = "" if bound.how.startswith("zCDP") else f" ({reason})"
        text = reason if math.isinf(cost.pure) else f"{why}; {bound.how}{source}"
        return Line(observer, "uploads", scope, USER, bound.epsilon, bound.delta, clip, assumed, text)

    def total(share: Cost, count_share: Cost, delta: float) -> Bound:
        rest = setting.uploads - setting.phases
        return compose([(share, rest), (share + count_share, setting.phases)], delta)

    one = compose([(cost + counts, 1)], setting.delta)
    single = total(cost, counts, setting.delta)
    if 0 < config.epsilon_budget < single.epsilon:
        single = Bound(config.epsilon_budget, 0.0, "the device stops at its epsilon-budget")
    apart = config.strategy == "fastpfrec" and config.tier == "trusted-nodes"
    lines = []
    if apart:
        seen = "sees single uploads and who sent them"
        lines += [
            line("trusted node", "one upload", one, noise, seen),
            line("trusted node", whole, single, f"{noise}; all nodes may collude", seen),
        ]
        mixed = shuffled((cost + counts).pure, setting.others + 1, setting.uploads, setting.delta)
        honest = (
            f"{noise}; trusted nodes are honest and run apart from the server; all clients of a round arrive; "
            f"{setting.colluding} colluding clients"
        )
        server = min(single, mixed, key=lambda bound: bound.epsilon)
        lines += [
            line("server", "one round", one, honest, "sees what the nodes make of the uploads: no more than those"),
            line("server", whole, server, honest, "sees what the nodes make of the uploads: no more than those"),
        ]
        if math.isfinite(cost.pure):
            lines.append(
                Line(
                    "server", "shuffling by the nodes", whole, USER, mixed.epsilon, mixed.delta, clip, honest, mixed.how
                )
            )
    else:
        seen = "no trusted nodes: it sees single uploads and who sent them"
        lines += [line("server", "one upload", one, noise, seen), line("server", whole, single, noise, seen)]
    lines.append(_final_line(setting, single, line, total, whole, noise))
    return lines


def _final_line(setting: Setting, single: Bound, line: Any, total: Any, whole: str, noise: str) -> Line:
    """Whoever sees nothing but the last table."""
    config = setting.config
    cost, counts, _ = upload_costs(config, setting.num_items)
    if 0 < config.evaluate_every < config.num_rounds and math.isfinite(cost.pure):
        return Line(
            "final model", "uploads", whole, USER, math.inf, 0.0, _clip_words(config), noise,
            "which round's table is kept (or for how many rounds is trained) is chosen by validation sums without noise; "
            "evaluate-every = 0 keeps the last round's",
        )  # fmt: skip
    if config.strategy != "fastpfrec" or config.check != "none" or config.node_aggregator != "mean":
        why = "the table is made of the uploads: no more than those"
        if config.strategy == "fastpfrec":
            why += "; as a sum of many noises it counts only with check = 'none' and node-aggregator = 'mean'"
        made: Line = line("final model", whole, single, noise, why)
        return made
    nodes = config.num_trusted_nodes if config.tier == "trusted-nodes" else 1
    # Half of delta pays for rounds in which chance sends hardly anybody to the user's node.
    delta = setting.delta if nodes == 1 else setting.delta / 2
    clients = 1 + clients_beside(setting.others, nodes, setting.uploads, setting.delta / 2)
    bound = total(cost.summed_over(clients), counts.summed_over(clients), delta)
    if bound.delta > 0 or nodes > 1:
        bound = Bound(bound.epsilon, setting.delta, bound.how)
    bound = min(single, bound, key=lambda each: each.epsilon)
    assumed = f"{noise}; all clients of a round arrive; {setting.colluding} colluding clients; nobody picks its node"
    summed: Line = line(
        "final model", whole, bound, assumed, f"made of sums over at least {clients} clients with noise of their own"
    )
    return summed


def _graph_lines(setting: Setting) -> list[Line]:
    """What the false items of the local graph hide by themselves, without the noise on the upload."""
    config = setting.config

    def line(epsilon: float, reason: str) -> Line:
        return Line(
            "everybody", "local graph", "whole run", INTERACTION, epsilon, 0.0, "not needed",
            "the device's secret stays on it; the interactions do not change between trainings", reason,
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
            "server", release, "whole run", USER, math.inf, 0.0, "none",
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
        "server: each node also hands it the median distance of its clients, so the sum of many noises alone is claimed for the "
        "final model only.",
    )
