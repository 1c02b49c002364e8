"""Notes on the rounds of an attacked run, what they add up to, and the files that they become."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.attacks.attackers import compromised_nodes, lasting_liars, lying_users
from fastpfrec_flwr.attacks.exposure import exposure_folder, read_exposure
from fastpfrec_flwr.client.opening import state_root, user_metrics_folder
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.evaluation.metrics import CUTOFFS
from fastpfrec_flwr.evaluation.user_metrics import UserMetrics
from fastpfrec_flwr.files import write_atomically
from fastpfrec_flwr.server.errors import RunError
from fastpfrec_flwr.server.run_folder import RunFolder

# A node is rightly isolated if it is compromised, or if at least this share of its clients lie.
BAD_NODE = 0.5
_COUNTS = (
    "liars", "liars_isolated", "honest", "honest_isolated", "honest_lost_with_nodes", "bad_nodes", "bad_nodes_isolated",
    "good_nodes", "good_nodes_isolated",
)  # fmt: skip


@dataclass
class RoundNotes:
    """One round.

    Attributes
    ----------
    nodes : (clients,) node of each upload. lying : (clients,) whether its client lies. kept : (clients,) whether its node's check
        left it. compromised : numbers of lying nodes.
    accepted : numbers of the nodes whose means went into the average. damage : distance of the new table to the one that the honest
        clients alone would have made, relative to their update; 1 where nothing was accepted. change_damage : the same of the
        averages, before the server step.
    """

    server_round: int
    nodes: NDArray[np.int64]
    lying: NDArray[np.bool_]
    kept: NDArray[np.bool_]
    compromised: NDArray[np.int64]
    accepted: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    damage: float = 1.0
    change_damage: float = 1.0

    def counts(self) -> dict[str, int]:
        """Clients and nodes, true and false, isolated and not."""
        through = self.kept & np.isin(self.nodes, self.accepted)
        bad, good, isolated, wrongly = 0, 0, 0, 0
        lost = 0
        for node in np.unique(self.nodes):
            mine = self.nodes == node
            is_bad = node in self.compromised or self.lying[mine].mean() >= BAD_NODE
            out = node not in self.accepted
            bad, good = bad + is_bad, good + (not is_bad)
            isolated, wrongly = isolated + (is_bad and out), wrongly + (not is_bad and out)
            lost += int((mine & ~self.lying).sum()) if out else 0
        return {
            "liars": int(self.lying.sum()),
            "liars_isolated": int((self.lying & ~through).sum()),
            "honest": int((~self.lying).sum()),
            "honest_isolated": int((~self.lying & ~through).sum()),
            "honest_lost_with_nodes": lost,
            "bad_nodes": bad,
            "bad_nodes_isolated": isolated,
            "good_nodes": good,
            "good_nodes_isolated": wrongly,
        }


class Notes:
    """All rounds of a run."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._rounds: list[tuple[dict[str, int], RoundNotes]] = []
        self._pending: list[RoundNotes] = []
        self._num_users = 0

    def begin(self, num_users: int) -> None:
        """Learn how many users there are, and so which of them lie."""
        self._num_users = num_users

    def liars(self, server_round: int) -> NDArray[np.int64]:
        """The users that lie in a round."""
        return lying_users(self._config, self._num_users, server_round)

    def lasting_liars(self) -> NDArray[np.int64]:
        """The users that lie in all rounds."""
        return lasting_liars(self._config, self._num_users)

    def add(self, notes: RoundNotes) -> None:
        """Take a round's notes; they are complete when the next round's come."""
        self._settle()
        self._pending = [notes]

    def _settle(self) -> None:
        self._rounds += [(each.counts(), each) for each in self._pending]
        self._pending = []

    def table(self) -> list[dict[str, int | float]]:
        """One line for each round, refit included."""
        self._settle()
        return [
            {"round": notes.server_round, **counts, "damage": notes.damage, "change_damage": notes.change_damage}
            for counts, notes in self._rounds
        ]

    def summary(self) -> dict[str, Any]:
        """Sums over the rounds in which somebody could lie; rates are None where there was nobody to count."""
        lines = [line for line in self.table() if line["round"] >= self._config.attack_from_round]
        counted = {name: int(sum(line[name] for line in lines)) for name in _COUNTS}
        damages = [float(line["damage"]) for line in lines]
        return {
            "attack": self._config.attack,
            "node_attack": self._config.node_attack,
            "rounds": len(lines),  # of a resumed run those since then
            "users": len(self.liars(self._config.attack_from_round)),
            "nodes": [int(each) for each in compromised_nodes(self._config)],
            "attackers": {"trained": counted["liars"], "isolated": counted["liars_isolated"]},
            "honest": {
                "trained": counted["honest"],
                "isolated": counted["honest_isolated"],
                "lost_with_nodes": counted["honest_lost_with_nodes"],
            },
            "bad_nodes": {"seen": counted["bad_nodes"], "isolated": counted["bad_nodes_isolated"]},
            "good_nodes": {"seen": counted["good_nodes"], "isolated": counted["good_nodes_isolated"]},
            "detected": _share(counted["liars_isolated"], counted["liars"]),
            "false_positives": _share(counted["honest_isolated"], counted["honest"]),
            "nodes_detected": _share(counted["bad_nodes_isolated"], counted["bad_nodes"]),
            "nodes_false_positives": _share(counted["good_nodes_isolated"], counted["good_nodes"]),
            "damage": float(np.mean(damages)) if damages else None,
            "damage_sd": float(np.std(damages, ddof=1)) if len(damages) > 1 else None,
            "change_damage": float(np.mean([line["change_damage"] for line in lines])) if lines else None,
        }


class MeasuredFolder(RunFolder):
    """A run folder whose summary also says what became of the attack."""

    def __init__(self, folder: RunFolder, notes: Notes) -> None:
        super().__init__(folder.path, folder.log_format)
        self._notes = notes
        self._exposures, self._users = Path(), Path()

    def write_config(self, config: RunConfig, facts: dict[str, Any]) -> None:
        """Write `config.json`.

        Raises
        ------
        RunError on real devices: attacks are for simulations.
        """
        if facts["deployed"]:
            raise RunError("attacks are for simulations: set attack = 'none' and node-attack = 'none' on real devices")
        self._notes.begin(int(facts["data"]["users"]))
        self._exposures = exposure_folder(state_root(config), str(facts["state_id"]))
        self._users = user_metrics_folder(state_root(config), str(facts["state_id"]))
        super().write_config(config, facts)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write `summary.json` with `attack` in it, `attack.json` and `attack_rounds.csv`."""
        found = self._notes.summary()
        found["promoted"] = read_exposure(self._exposures)
        found["honest_test"] = honest_test(self._users, self._notes.lasting_liars(), summary["test"])
        # The two figures that tables show, by names without a cutoff.
        found["exposure"] = found["promoted"] and found["promoted"]["er@10"]
        found["honest_ndcg"] = found["honest_test"] and found["honest_test"]["ndcg@20"]
        found["check_seconds_round"] = summary["seconds"]["trusted_nodes_round"]
        write_atomically(self.path / "attack.json", (json.dumps(found, indent=2) + "\n").encode())
        lines = self._notes.table()
        if lines:
            text = io.StringIO()
            writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)
            write_atomically(self.path / "attack_rounds.csv", text.getvalue().encode())
        super().write_summary({**summary, "attack": found})


def honest_test(folder: Path, liars: NDArray[np.int64], test: dict[str, float]) -> dict[str, float] | None:
    """NDCG and HR of the users who do not lie, from what their devices kept (`user-metrics`); None where they kept nothing.

    What liars are shown is their own affair, and what they would have taught the model nobody can bring back.
    """
    files = sorted(folder.glob("*-of-*.npz")) if folder.is_dir() and test else []
    if not files:
        return None
    merged = UserMetrics.merged(UserMetrics.load(path) for path in files)
    chosen = ~np.isin(merged.users, liars)
    honest = UserMetrics(merged.users[chosen], {name: each[chosen] for name, each in merged.values.items()})
    found = {}
    for k in CUTOFFS:
        found[f"ndcg@{k}"] = float(honest.values[f"ndcg@{k}"].mean(dtype=np.float64))
        found[f"hit_ratio_micro@{k}"] = honest.hit_ratio_micro(k)
    return found


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
