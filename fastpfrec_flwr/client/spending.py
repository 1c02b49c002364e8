"""What an upload costs its user, and who may pay for one more: within a run's budget, and within a real device's over all runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.client.device import Allowance
from fastpfrec_flwr.client.state import ClientState
from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.privacy.upload_costs import upload_epsilons


@dataclass(frozen=True)
class Spending:
    """The epsilon of one SuperNode's users.

    Attributes
    ----------
    budget : of one user and run; 0 where nobody counts. state : what each user has spent of it.
    allowance : on a real device the book of what its uploads cost, over all trainings; None keeps none.
    num_items : rows of the table, which an upload's cost may grow with.
    """

    config: RunConfig
    budget: float
    state: ClientState
    allowance: Allowance | None
    num_items: int

    def allows(self, users: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(users,) who may upload once more."""
        able = np.ones(len(users), np.bool_)
        spent = self.spent_after(users)
        if spent is not None:
            able &= spent <= self._budget_of_a_phase
        if self.allowance is not None:
            able &= self.allowance.allows(users, self._lasting_costs(users))
        return able

    def spent_after(self, users: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """(users,) epsilon that each user has spent if it uploads once more, by plain addition; None without a budget."""
        return None if self.budget == 0 else self.state.spent(users) + self._costs(users)

    def charge(self, server_round: int, users: NDArray[np.int64]) -> None:
        """Write into the device's book that each of `users` uploads once more, before it does; see `Device.charge`."""
        if self.allowance is not None:
            self.allowance.charge(server_round, users, self._lasting_costs(users))

    @property
    def _budget_of_a_phase(self) -> float:
        """A refit is a second training, with a state of its own."""
        # Sums of floats may end a hair above a budget that is meant to be used up.
        return self.budget / (2 if self.config.refit else 1) * (1 + 1e-9)

    def _lasting_costs(self, users: NDArray[np.int64]) -> NDArray[np.float64]:
        """What the device's own book counts: for any change of the data, whatever a server's configuration takes for one."""
        return self._costs(users, "replace")

    def _costs(self, users: NDArray[np.int64], adjacency: str = "") -> NDArray[np.float64]:
        """(users,) pure epsilon of one more upload of each user; `adjacency` in place of the run's."""
        config = self.config.model_copy(update={"adjacency": adjacency}) if adjacency else self.config
        each, first = upload_epsilons(config, self.num_items)
        return each + np.where(self.state.known(users), 0.0, first)
