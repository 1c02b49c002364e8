"""A run of a federation, from outside."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.e2e.patience import patience

if TYPE_CHECKING:
    from tests.e2e.deployment import Federation


@dataclass
class Run:
    """A run of a federation."""

    federation: "Federation"
    run_id: str
    output: Path

    @property
    def status(self) -> str:
        printed = self.federation.flwr("ls", "field", "--run-id", self.run_id, "--format", "json")
        return str(json.loads(printed)["runs"][0]["status"])

    @property
    def log(self) -> str:
        path = self.output / "log.txt"
        return path.read_text() if path.exists() else ""

    def said(self, text: str) -> bool:
        return text in self.log

    def wait_until_said(self, text: str, seconds: float) -> None:
        deadline = time.monotonic() + patience(seconds)
        while not self.said(text):
            assert time.monotonic() < deadline, f"{text!r}: not within {seconds:g} s\n{self.everything()}"
            time.sleep(0.2)

    def stop(self, seconds: float) -> dict[str, Any]:
        """End the run after the round that runs; its summary.

        Not by `flwr stop`, which cuts the round off: a SuperNode that was fetching a message then sends each answer only with the
        next message, for as long as it lives (Flower 1.42).
        """
        (self.output / "stop").touch()
        return self._stopped(seconds)

    def cut_off(self, seconds: float) -> dict[str, Any]:
        """`flwr stop`: the run ends at once; its summary."""
        self.federation.flwr("stop", self.run_id, "field")
        return self._stopped(seconds)

    def _stopped(self, seconds: float) -> dict[str, Any]:
        summary = self._wait_for_summary(seconds)
        assert summary["stopped"] is True
        return summary

    def wait(self, seconds: float) -> dict[str, Any]:
        """Wait for the end of a run that must succeed; its summary."""
        summary = self._wait_for_summary(seconds)
        status = self.status
        assert status == "finished:completed", f"{status}\n{self.everything()}"
        return summary

    def _wait_for_summary(self, seconds: float) -> dict[str, Any]:
        path = self.output / "summary.json"
        deadline = time.monotonic() + patience(seconds)
        while not path.exists() or self.federation.children(self.federation.superlink, "flwr-serverapp"):
            assert time.monotonic() < deadline, f"no summary within {seconds:g} s\n{self.everything()}"
            time.sleep(0.2)
        return dict(json.loads(path.read_text()))

    def everything(self) -> str:
        """What everybody printed, for a test that fails."""
        logs = [f"== run\n{self.log}"]
        for path in sorted(self.federation.folder.glob("*/out")):
            logs.append(f"== {path.parent.name}\n{path.read_text(errors='replace')[-4000:]}")
        return "\n".join(logs)
