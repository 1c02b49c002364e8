"""Before the first round: SuperNodes are found, the catalogue is agreed on, and the table is made or a checkpoint restored."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fastpfrec_flwr import messages
from fastpfrec_flwr.catalogue import Catalogue, CatalogueError, hash_of
from fastpfrec_flwr.config import ConfigError, RunConfig
from fastpfrec_flwr.messages import Order
from fastpfrec_flwr.model.named import build_layout
from fastpfrec_flwr.server.checkpoint import Checkpoint, load_checkpoint
from fastpfrec_flwr.server.device_strategy import DeviceStrategy
from fastpfrec_flwr.server.errors import RunError
from fastpfrec_flwr.server.initial_model import first_state, known_rows
from fastpfrec_flwr.server.logbook import Logbook
from fastpfrec_flwr.server.nodes import STABLE_SECONDS, SuperNodes, discover, fetch_catalogue
from fastpfrec_flwr.server.presence import Presence
from fastpfrec_flwr.server.run_folder import STOP
from fastpfrec_flwr.server.steps import ServerState
from fastpfrec_flwr.server.summary import Progress, Subject


@dataclass(frozen=True)
class Beginning:
    """What the rounds of a run begin with.

    Attributes
    ----------
    began : `time.monotonic()` of when. subject : what the run is about. item_ids : in row order.
    num_supernodes : that take part at first. presence : of real devices, who takes part later.
    state_id : names the state that the devices keep. restored : the server's state of the checkpoint.
    checkpoint : what is gone on from, if it is one. given : (rows, k), the table that the caller handed over, if one.
    """

    began: float
    subject: Subject
    item_ids: list[str]
    num_supernodes: int
    presence: Presence | None
    state_id: str
    restored: ServerState | None
    checkpoint: Checkpoint | None
    given: NDArray[np.float32] | None

    def first_state(self) -> ServerState:
        """The server's state before the first round of a phase: of the given table, if there is one."""
        if self.given is not None:
            return ServerState.start(self.given.copy())
        return first_state(self.item_ids, self.subject.config)

    def state(self) -> ServerState:
        """The server's state to begin or to go on with."""
        return self.first_state() if self.restored is None else self.restored

    def progress(self) -> Progress:
        """Where the run stands."""
        return Progress() if self.checkpoint is None else Progress.from_dict(self.checkpoint.progress)


def begin_run(
    strategy: DeviceStrategy, grid: Grid, config: RunConfig, log: Logbook, initial_arrays: ArrayRecord | None = None
) -> Beginning:
    """Agree with the SuperNodes, and say in the log on what.

    Parameters
    ----------
    strategy : gets the SuperNodes and the catalogue. initial_arrays : `item-table` to begin with; None makes one.

    Raises
    ------
    RunError, ConfigError with a message for the user.
    """
    began = time.monotonic()
    checkpoint = load_checkpoint(Path(config.resume_from), config) if config.resume_from else None
    state_id = uuid.uuid4().hex[:12] if checkpoint is None else checkpoint.state_id
    own = _own_catalogue(config)
    if own is not None:
        # Devices with another one then say so when they are asked.
        strategy.use_catalogue(own.hash, own.version)
    order = strategy.order(0)
    simulated = getattr(grid, "in_process", False)
    nodes = discover(grid, order, 0.0 if simulated else STABLE_SECONDS, config.round_timeout)
    for reason in dict.fromkeys(nodes.refused):
        log.say(f"a SuperNode does not take part: {reason}")
    strategy.attach(nodes, state_id)
    presence = Presence(grid, nodes, order, log.say) if nodes.deployed else None
    first = nodes.descriptions[0]
    strategy.use_catalogue(first.catalogue, 0 if own is None else own.version)
    item_ids, report = _items(grid, nodes, order, own, config.round_timeout)
    _see_that_enough_are_there(config, nodes)
    log.begin(_facts(nodes, report, state_id), own)
    subject = Subject(
        config,
        first.data_set if nodes.deployed else config.data_set,
        first.data,
        nodes.num_users,
        build_layout(config).rows(len(item_ids)),
        nodes.deployed,
    )
    _introduce(strategy, subject, nodes, log)
    if config.train_items == "new":
        fixed = known_rows(item_ids, config)
        log.say(f"only rows that the initial model does not have are trained: {int((~fixed).sum())} of {len(fixed)}")
        strategy.fix_rows(fixed)
    restored = None if checkpoint is None else _restored(checkpoint, subject, first.data_set, log)
    given = None if initial_arrays is None else _given_table(initial_arrays, subject)
    return Beginning(began, subject, item_ids, len(nodes.ids), presence, state_id, restored, checkpoint, given)


def _see_that_enough_are_there(config: RunConfig, nodes: SuperNodes) -> None:
    """Refuse what counts on more users than there are.

    Raises
    ------
    RunError, see above.
    """
    there, wanted = nodes.num_users, config.clients_per_round
    if config.strategy == "fastpfrec" and config.num_trusted_nodes > there:
        raise RunError(
            f"num-trusted-nodes must be <= the users of the data set ({there}), "
            f"got {config.num_trusted_nodes}; lower num-trusted-nodes"
        )
    if config.strategy == "fastpfrec" and config.server_step == "posterior" and wanted > there:
        raise RunError(
            f"clients-per-round must be <= the users of the data set ({there}) with server-step = 'posterior', got {wanted}: the "
            "step knows the noise of that many; lower clients-per-round"
        )
    if nodes.deployed and config.secure_sum and wanted > there:
        raise RunError(
            f"clients-per-round must be <= the users of all devices ({there}) with secure-sum, got {wanted}: each device counts on "
            "that many and would refuse smaller sums; lower clients-per-round"
        )


def _own_catalogue(config: RunConfig) -> Catalogue | None:
    """The server's catalogue file, if it has one."""
    if not config.catalogue:
        return None
    try:
        return Catalogue.load(Path(config.catalogue))
    except CatalogueError as error:
        raise ConfigError(f"catalogue: {error}") from error


def _items(grid: Grid, nodes: SuperNodes, order: Order, own: Catalogue | None, timeout: float) -> tuple[list[str], str]:
    """Item ids in row order, and what was said of the data (JSON). Real devices say nothing, so where the server has the
    catalogue itself nobody is asked: a message is seconds there."""
    agreed = nodes.descriptions[0].catalogue
    if own is not None and nodes.deployed and own.hash == agreed:
        return own.row_names, "{}"
    item_ids, report = fetch_catalogue(grid, nodes, order, timeout)
    if hash_of(item_ids) != agreed:
        raise RunError("a SuperNode handed out other item ids than it said it has: its app is broken, leave it out")
    return item_ids, report


def _facts(nodes: SuperNodes, report: str, state_id: str) -> dict[str, Any]:
    """What `config.json` says beside the configuration."""
    first = nodes.descriptions[0]
    return {
        "data": {
            "name": first.data_set,
            "fingerprint": first.data,
            "catalogue": first.catalogue,
            "users": nodes.num_users,
            "items": first.num_items,
            "report": json.loads(report),
        },
        "super_nodes": len(nodes.ids),
        "deployed": nodes.deployed,
        "state_id": state_id,
    }


def _introduce(strategy: DeviceStrategy, subject: Subject, nodes: SuperNodes, log: Logbook) -> None:
    """Say what is trained, on whom, and what it costs in privacy."""
    config, first = subject.config, nodes.descriptions[0]
    log.say(
        f"{first.data_set}: {nodes.num_users} users, {first.num_items} items on {len(nodes.ids)} SuperNodes; "
        f"{min(config.clients_per_round, nodes.num_users)} clients a round to {strategy.route}"
    )
    log.say(subject.privacy_line())
    log.say(subject.ledger().whole_run_line())
    for note in strategy.notes():
        log.say(note)
    if nodes.deployed and log.folder is not None:
        log.say(f"run folder: {log.folder.path}; a file named {STOP} in it ends the run after a round")
    if nodes.deployed and config.user_metrics:
        log.say("user-metrics is ignored: on real devices nobody's metrics are kept apart")


def _given_table(arrays: ArrayRecord, subject: Subject) -> NDArray[np.float32]:
    """The `item-table` that a caller handed over."""
    shape = (subject.rows, subject.config.embedding_dim)
    return messages.decode_array(arrays["item-table"], "item-table", "float32", shape)


def _restored(checkpoint: Checkpoint, subject: Subject, data_set: str, log: Logbook) -> ServerState:
    """A checkpoint's state, once it is known to be of this data.

    Raises
    ------
    ConfigError if it is of other data.
    """
    config = subject.config
    if checkpoint.data != subject.data or len(checkpoint.state.item_table) != subject.rows:
        raise ConfigError(f"resume-from: {config.resume_from} was trained on other data than {data_set}")
    progress = Progress.from_dict(checkpoint.progress)
    log.go_on(progress.lines)
    log.say(f"going on after round {progress.server_round} of phase {progress.phase}")
    if config.strategy != "fastpfrec":
        log.say("what the strategy itself remembers (moments, momentum) is in no checkpoint and starts anew")
    return checkpoint.state
