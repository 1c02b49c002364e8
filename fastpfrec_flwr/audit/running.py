"""The audit of a configuration: one real run with each protection, observers on its uploads, and canaries through mechanisms."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fastpfrec_flwr.audit.canary import Finding, audit_by_coins, audit_by_runs
from fastpfrec_flwr.audit.measuring import Figure, measure, reconstruction_curve
from fastpfrec_flwr.audit.protections import Protection
from fastpfrec_flwr.audit.recording import Recorder
from fastpfrec_flwr.config import RunConfig, parse_run_config
from fastpfrec_flwr.data import Split
from fastpfrec_flwr.data.preparation import prepare_run
from fastpfrec_flwr.model.named import build_layout
from fastpfrec_flwr.parallel import one_thread_products
from fastpfrec_flwr.privacy.accountant import Cost, compose
from fastpfrec_flwr.privacy.exposure import build_ledger
from fastpfrec_flwr.privacy.lines import DEFAULT_DELTA, Setting
from fastpfrec_flwr.privacy.mechanism import Clip, GaussianMechanism, LaplaceMechanism, Mechanism
from fastpfrec_flwr.randomness import derive_generator
from fastpfrec_flwr.simulation.run import simulate


@dataclass(frozen=True)
class Audited:
    """What one protection left to see.

    Attributes
    ----------
    epsilon_one, epsilon_all : the ledger's, against a trusted node: of one upload, and of the audited run. figures : see
        `measuring.FIGURES`. curve : reconstruction by number of uploads.
    """

    name: str
    epsilon_one: float
    epsilon_all: float
    figures: dict[str, Figure]
    curve: list[Figure]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-able values."""

        def told(epsilon: float) -> float | str:
            return "infinity" if math.isinf(epsilon) else epsilon

        return {
            "protection": self.name,
            "epsilon_one_upload": told(self.epsilon_one),
            "epsilon_whole_run": told(self.epsilon_all),
            "figures": {name: figure.to_dict() for name, figure in self.figures.items()},
            "reconstructed_by_uploads": [figure.to_dict() for figure in self.curve],
        }


@dataclass(frozen=True)
class CanaryRow:
    """One audited mechanism: what it claims, what was found, and what had to come out."""

    mechanism: str
    randomness: str
    method: str
    claim: float
    finding: Finding
    mutant: bool

    @property
    def verdict(self) -> str:
        """In words."""
        if self.finding.refutes(self.claim):
            return "refuted" + (" (a mutant: as it must be)" if self.mutant else "")
        return "holds" if not self.mutant else "NOT caught"

    @property
    def as_expected(self) -> bool:
        """Whether an honest mechanism holds and a mutant is caught."""
        return self.finding.refutes(self.claim) == self.mutant


def audited_config(config: RunConfig, uploads: int, num_users: int) -> RunConfig:
    """The configuration with as many rounds as let each user upload so often, and nothing that stops it before."""
    walk = max(num_users // max(min(config.clients_per_round, num_users), 1), 1)
    return config.model_copy(
        update={
            "num_rounds": uploads * walk, "evaluate_every": 0, "early_stop_patience": 0, "refit": False,
            "checkpoint_every": 0, "resume_from": "", "report_loss": False, "user_metrics": False, "trackers": "",
        }
    )  # fmt: skip


def run_audit(
    config: RunConfig, chosen: list[Protection], num_watched: int, uploads: int, say: Callable[[str], None]
) -> list[Audited]:
    """Run the configuration with each protection and look at the uploads of some users.

    Parameters
    ----------
    num_watched : users whose uploads are looked at, drawn by the seed. uploads : of each user. say : told what goes on.
    """
    split = prepare_run(config).load()
    base = audited_config(config, uploads, split.num_users)
    count = min(num_watched, split.num_users)
    users = np.sort(derive_generator(config.seed, "audit", "watched").choice(split.num_users, count, replace=False))
    truth = {int(user): _items_of(split, int(user)) for user in users}
    found = []
    for protection in chosen:
        say(protection.name)
        found.append(_run(protection, base, users.astype(np.int64), truth, split))
    return found


def _items_of(split: Split, user: int) -> NDArray[np.bool_]:
    items = np.zeros(split.num_items, np.bool_)
    items[split.train.row(user)] = True
    return items


def _run(
    protection: Protection,
    base: RunConfig,
    users: NDArray[np.int64],
    truth: dict[int, NDArray[np.bool_]],
    split: Split,
) -> Audited:
    with tempfile.TemporaryDirectory(prefix="fastpfrec-audit-") as folder:
        paths = {"output-dir": str(Path(folder) / "run"), "state-dir": str(Path(folder) / "state")}
        config = parse_run_config({**protection.applied_to(base).to_flat_dict(), **paths})
        recorder = Recorder(config, users, split.num_items, Path(folder) / "fresh" if protection.fresh else None)
        # Many small products: threads would wait for each other longer than they work.
        with redirect_stdout(StringIO()), one_thread_products():
            simulate(config.to_flat_dict(), 1, cast(ClientApp, recorder))
            recorder.close_round()
    ledger = build_ledger(Setting(config, split.num_users, build_layout(config).rows(split.num_items)))
    observer = "trusted node" if any(line.observer == "trusted node" for line in ledger.lines) else "server"
    return Audited(
        protection.name,
        ledger.of(observer, scope="one").epsilon,
        ledger.of(observer).epsilon,
        measure(recorder.seen, truth),
        reconstruction_curve(recorder.seen, truth),
    )


# One audit in ten thousand refutes a mechanism that has exactly what it claims.
VERDICT_CONFIDENCE = 0.9999
# Coins of one upload, and of these the ones that are guessed.
_COINS, _GUESSES = 1 << 16, 1 << 15
_WIDTH = 4


def run_canaries(config: RunConfig, trials: int, seed: int) -> list[CanaryRow]:
    """Both laws of noise at a claim of 1, their mutants with half the noise, and the configuration's own mechanism.

    Parameters
    ----------
    trials : of each of two changes.
    """
    rows: list[CanaryRow] = []
    delta = DEFAULT_DELTA
    # Claim 1: an L1 clip of 1 moves by 2, so lambda = 2; an L2 clip of 1 moves by 2, sigma from the analytic calibration.
    from dp_accounting import get_sigma_gaussian

    laplace = LaplaceMechanism(Clip(0.0, 1.0, l1=True), 2.0, dense=True)
    gaussian = GaussianMechanism(Clip(0.0, 1.0), 2 * float(get_sigma_gaussian(1.0, delta)), dense=True)
    first = np.zeros((1, _WIDTH), np.float32)
    first[0, 0] = 5.0  # five times the clip: only a mechanism that clips can hold
    for source, from_seed in (("seeded", seed), ("operating system", None)):
        for name, mechanism, loss in (("Laplace, L1 clip", laplace, 0.0), ("Gaussian, L2 clip", gaussian, delta)):
            for mutant in (False, True):
                made = replace(mechanism, noise_scale=mechanism.noise_scale / 2) if mutant else mechanism
                finding = audit_by_runs(made, first, -first, trials, from_seed, loss, VERDICT_CONFIDENCE)
                rows.append(CanaryRow(_named(name, mutant), source, "many runs", 1.0, finding, mutant))
    # One coordinate within 0.5 moves by 1: lambda = 1 claims 1 for it.
    coins = LaplaceMechanism(Clip(0.0, 0.0, coordinate_bound=0.5), 1.0, dense=True)
    for mutant in (False, True):
        made = replace(coins, noise_scale=0.5) if mutant else coins
        finding = audit_by_coins(made, 5.0, _COINS, _GUESSES, None, confidence=VERDICT_CONFIDENCE)
        name = _named("Laplace, clamp of coordinates", mutant)
        rows.append(CanaryRow(name, "operating system", "one run", 1.0, finding, mutant))
    own = _own_row(config, min(trials, 2000), seed)
    return [*rows, own] if own is not None else rows


def _named(name: str, mutant: bool) -> str:
    return f"{name}, half the noise" if mutant else name


def _own_row(config: RunConfig, trials: int, seed: int) -> CanaryRow | None:
    """The configuration's own noise and clip on a small table, where its claim is smallest."""
    mechanism, claim = _own_mechanism(config, items=8)
    if mechanism is None:
        return None
    change = np.full((8, config.embedding_dim), 1e3, np.float32)
    delta = 0.0 if config.noise == "laplace" else DEFAULT_DELTA
    finding = audit_by_runs(mechanism, change, -change, trials, seed, delta, VERDICT_CONFIDENCE)
    return CanaryRow("as configured (a table of 8 items)", "seeded", "many runs", claim, finding, False)


def _own_mechanism(config: RunConfig, items: int) -> tuple[Mechanism | None, float]:
    from fastpfrec_flwr.client.build import build_mechanism
    from fastpfrec_flwr.privacy.upload_costs import upload_costs

    if config.upload_precision != "float32" or config.counted:
        config = config.model_copy(update={"upload_precision": "float32", "popularity_weight": 0.0})
    cost, _, _ = upload_costs(config, items)
    if not cost.bounded:
        return None, math.inf
    delta = DEFAULT_DELTA if cost.gaussian else 0.0
    return build_mechanism(config, 1), compose([(Cost(cost.pure, cost.rho, cost.gaussian), 1)], delta).epsilon
