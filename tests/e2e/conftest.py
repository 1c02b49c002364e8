"""For tests with real processes."""

import pytest


@pytest.fixture(scope="session")
def warm_kernels(tmp_path_factory):
    """The compiled kernels of this code, so that no device of a test spends its round on compiling them."""
    from fastpfrec_flwr.simulation import grid
    from fastpfrec_flwr.simulation.run import simulate
    from tests.e2e.shop import write_catalogue, write_history
    from tests.whole_runs import settings_of

    folder = tmp_path_factory.mktemp("warm")
    write_catalogue(folder / "catalogue.json")
    write_history(folder / "me.csv", 4, seed=1)

    class Deployed(grid.InProcessGrid):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            for context in self.contexts.values():
                context.node_config = {
                    "data-path": str(folder / "me.csv"),
                    "catalogue": str(folder / "catalogue.json"),
                    "state-dir": str(folder / "state"),
                }

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastpfrec_flwr.simulation.run.InProcessGrid", Deployed)
        for precision in ("float32", "int8"):
            values = {
                "output_dir": str(folder / precision), "embedding_dim": 8, "num_rounds": 1, "num_trusted_nodes": 1,
                "num_negatives": 16, "clients_per_round": 20, "upload_precision": precision, "threads": 1,
            }  # fmt: skip
            simulate(settings_of(values), 1)
