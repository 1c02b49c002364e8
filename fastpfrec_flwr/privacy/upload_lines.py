"""The ledger's lines on uploads: what they cost from where each observer stands."""

from __future__ import annotations

import math

from fastpfrec_flwr.config import RunConfig
from fastpfrec_flwr.privacy.accountant import Bound, Cost, clients_beside, compose, shuffled
from fastpfrec_flwr.privacy.lines import Line, Setting, user_adjacency
from fastpfrec_flwr.privacy.masking import least_in_sum
from fastpfrec_flwr.privacy.upload_costs import upload_costs


def upload_lines(setting: Setting) -> list[Line]:
    """Every observer's, from who sees most to who sees least."""
    return _UploadLines(setting).all()


class _UploadLines:
    """What the lines on the uploads of one setting have in common."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.config = setting.config
        self.cost, self.counts, self.reason = upload_costs(self.config, setting.num_items)
        self.whole = f"whole run, at most {setting.uploads} uploads"
        self.noise = "the device draws its noise from the operating system and keeps it" + (
            "" if setting.deployed else "; the seeded noise of a simulation protects nobody who knows the seed"
        )
        self.dropouts = (
            f"at most {self.config.dropout_fraction:.0%} of a round's clients fail"
            if self.config.dropout_fraction
            else "all clients of a round arrive"
        )
        self.one = compose([(self.cost + self.counts, 1)], setting.delta)
        self.single = self.total(self.cost, self.counts, setting.delta)
        if 0 < self.config.epsilon_budget < self.single.epsilon:
            self.single = Bound(self.config.epsilon_budget, 0.0, "the device stops at its epsilon-budget")

    def total(self, share: Cost, count_share: Cost, delta: float) -> Bound:
        """All uploads of a user."""
        rest = self.setting.uploads - self.setting.phases
        return compose([(share, rest), (share + count_share, self.setting.phases)], delta)

    def line(self, observer: str, scope: str, bound: Bound, assumed: str, why: str) -> Line:
        """One line, with the proof that counts."""
        # What the pure epsilon of an upload comes from is told where it is what counts.
        source = "" if bound.how.startswith("zCDP") else f" ({self.reason})"
        text = f"{why}; {bound.how}{source}" if self.cost.bounded else self.reason
        return Line(
            observer,
            "uploads",
            scope,
            user_adjacency(self.config),
            bound.epsilon,
            bound.delta,
            _clip_words(self.config),
            assumed,
            text,
        )

    def all(self) -> list[Line]:
        """Every observer's, from who sees most to who sees least."""
        config = self.config
        if config.strategy != "fastpfrec" or config.tier != "trusted-nodes":
            seen = "no trusted nodes: it sees single uploads and who sent them"
            lines = [
                self.line("server", "one upload", self.one, self.noise, seen),
                self.line("server", self.whole, self.single, self.noise, seen),
            ]
            return [*lines, self._final(self.single)]
        if config.secure_sum:
            return self._of_secure_sums()
        seen = "sees single uploads and who sent them"
        if config.noise_placement == "distributed":
            seen += ", each with its share of the noise alone"
        lines = [
            self.line("trusted node", "one upload", self.one, self.noise, seen),
            self.line("trusted node", self.whole, self.single, f"{self.noise}; all nodes may collude", seen),
        ]
        server_one, server_whole = self._server()
        lines += [server_one, server_whole]
        if self.cost.bounded and not self.cost.gaussian:
            mixed = self._mixed()
            shuffling = Line(
                "server", "shuffling by the nodes", self.whole, user_adjacency(config), mixed.epsilon, mixed.delta,
                _clip_words(config), self._honest(), mixed.how,
            )  # fmt: skip
            lines.append(shuffling)
        server = Bound(server_whole.epsilon, server_whole.delta, "no more than the server")
        return [*lines, self._final(server if server.epsilon < self.single.epsilon else self.single)]

    def _of_secure_sums(self) -> list[Line]:
        """Everybody beyond the device sees sums over groups of a fixed size, and nothing of one that lost too many."""
        setting, config = self.setting, self.config
        least = least_in_sum(setting.clients, config.num_trusted_nodes, config.dropout_fraction)
        clients = max(least - setting.colluding, 1)
        share, count_share = self.cost.summed_over(clients), self.counts.summed_over(clients)
        one = compose([(share + count_share, 1)], setting.delta)
        whole = self.total(share, count_share, setting.delta)
        assumed = (
            f"{self.noise}; {setting.colluding} colluding clients, all in the user's group; the public keys are relayed as "
            "they are; the masks' ciphers hold (computational)"
        )
        why = f"sees sums over at least {clients} clients with noise of their own"
        lines = [
            self.line(observer, scope, bound, assumed, why)
            for observer in ("trusted node", "server")
            for scope, bound in (
                ("one upload" if observer == "trusted node" else "one round", one),
                (self.whole, whole),
            )
        ]
        return [*lines, self._final(Bound(whole.epsilon, whole.delta, "no more than the server"))]

    def _mixed(self) -> Bound:
        setting = self.setting
        # Its proof hides a user among clones that anybody's data may make, so what counts is the distance of any two uploads.
        cost, counts, _ = upload_costs(self.config.model_copy(update={"adjacency": "replace"}), setting.num_items)
        return shuffled((cost + counts).pure, setting.others + 1, setting.uploads, setting.delta)

    def _honest(self) -> str:
        return (
            f"{self.noise}; trusted nodes are honest and run apart from the server; {self.dropouts}; "
            f"{self.setting.colluding} colluding clients"
        )

    def _server(self) -> tuple[Line, Line]:
        """One round and the whole run, seen in the nodes' sums where these are all that the server gets."""
        honest, plain = self._honest(), "sees what the nodes make of the uploads: no more than those"
        if not self._sums_only:
            best = min(self.single, self._mixed(), key=lambda bound: bound.epsilon)
            plain += "; as a sum of many noises it counts only with check = 'none', node-aggregator = 'mean' and dense uploads"
            return (
                self.line("server", "one round", self.one, honest, plain),
                self.line("server", self.whole, best, honest, plain),
            )
        nodes = self.config.num_trusted_nodes
        one, whole = self._summed(nodes, 1), self._summed(nodes, self.setting.uploads)
        choices = [(self.single, plain), (self._mixed(), plain), (whole[0], self._of_sums(whole[1]))]
        best_whole = min(choices, key=lambda each: each[0].epsilon)
        best_one = min([(self.one, plain), (one[0], self._of_sums(one[1]))], key=lambda each: each[0].epsilon)
        assumed = f"{honest}; nobody picks its node"
        return (
            self.line("server", "one round", best_one[0], assumed, best_one[1]),
            self.line("server", self.whole, best_whole[0], assumed, best_whole[1]),
        )

    @property
    def _sums_only(self) -> bool:
        """Whether what leaves a node is a plain sum of its clients' uploads, whatever they hold."""
        # A row that was not drawn has no noise of that client's: of sampled uploads only the user's own counts.
        plain = self.config.check == "none" and self.config.node_aggregator == "mean"
        return plain and self.config.upload != "sampled"

    def _of_sums(self, clients: int) -> str:
        return f"sees sums over at least {clients} clients with noise of their own"

    def _summed(self, nodes: int, uploads: int) -> tuple[Bound, int]:
        """A user's uploads seen in sums, and over how many clients each of these goes at least."""
        setting = self.setting
        # Half of delta pays for rounds in which chance sends hardly anybody to the user's node.
        delta = setting.delta if nodes == 1 else setting.delta / 2
        clients = 1 + clients_beside(setting.others, nodes, uploads, setting.delta / 2)
        share, count_share = self.cost.summed_over(clients), self.counts.summed_over(clients)
        bound = compose([(share + count_share, 1)], delta) if uploads == 1 else self.total(share, count_share, delta)
        if bound.delta > 0 or nodes > 1:
            bound = Bound(bound.epsilon, setting.delta, bound.how)
        return bound, clients

    def _final(self, seen_before: Bound) -> Line:
        """Whoever sees nothing but the last table, which is made of what the server sees: `seen_before`."""
        config, setting = self.config, self.setting
        if 0 < config.evaluate_every < config.num_rounds and self.cost.bounded:
            return Line(
                "final model", "uploads", self.whole, user_adjacency(config), math.inf, 0.0, _clip_words(config), self.noise,
                "which round's table is kept (or for how many rounds is trained) is chosen by validation sums without noise; "
                "evaluate-every = 0 keeps the last round's",
            )  # fmt: skip
        if config.strategy != "fastpfrec" or not self._sums_only:
            why = "the table is made of the uploads: no more than those"
            if config.strategy == "fastpfrec":
                why += "; as a sum of many noises it counts only with check = 'none' and node-aggregator = 'mean'"
            return self.line("final model", self.whole, self.single, self.noise, why)
        if config.secure_sum:
            return self.line("final model", self.whole, seen_before, self.noise, "made of what the server sees")
        nodes = config.num_trusted_nodes if config.tier == "trusted-nodes" else 1
        bound, clients = self._summed(nodes, setting.uploads)
        bound = min(bound, seen_before, key=lambda each: each.epsilon)
        assumed = f"{self.noise}; {self.dropouts}; {setting.colluding} colluding clients; nobody picks its node"
        why = f"made of sums over at least {clients} clients with noise of their own"
        return self.line("final model", self.whole, bound, assumed, why)


def _clip_words(config: RunConfig) -> str:
    words = [f"rows L2 <= {config.row_clip:g}"] if config.row_clip else []
    words += [f"coordinates <= {config.coordinate_clip:g}"] if config.coordinate_clip else []
    words += [f"upload {config.clip_kind.upper()} <= {config.clip_norm:g}"] if config.clip_norm else []
    return ", ".join(words) or "none"
