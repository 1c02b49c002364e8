"""From a configuration to a client's objects: encoder, privacy mechanism and device are chosen here and nowhere else.

The encoder is `model.encoders.build_encoder`'s, which `Node.encoder` asks. The false items of the graph are drawn by
`model.graph.build_local_graphs`, whose `perturbation` is one function with four ways to draw.
"""

from __future__ import annotations

from pathlib import Path

from fastpfrec_flwr.client.node import Node
from fastpfrec_flwr.client.state import ClientState
from fastpfrec_flwr.config import ConfigError, RunConfig
from fastpfrec_flwr.data import Shard
from fastpfrec_flwr.evaluation.rows import Rows
from fastpfrec_flwr.privacy.mechanism import (
    Clip,
    GaussianMechanism,
    HalfPrecision,
    LaplaceMechanism,
    Mechanism,
    NoNoise,
)


def build_mechanism(config: RunConfig, threads: int) -> Mechanism:
    """The privacy mechanism that the configuration asks for, and with it the form of the upload."""
    clip = Clip(config.row_clip, config.clip_norm, config.clip_kind == "l1", config.counted, config.coordinate_clip)
    scale, dense = config.effective_noise_scale, config.upload == "dense"
    mechanisms: dict[str, Mechanism] = {
        "none": NoNoise(clip),
        "laplace": LaplaceMechanism(clip, scale, dense, threads, config.secure_sum),
        "gaussian": GaussianMechanism(clip, scale, dense, threads, config.secure_sum),
    }
    mechanism = mechanisms[config.noise]
    return HalfPrecision(mechanism) if config.upload_precision == "float16" else mechanism


def build_device(wanted: str) -> str:
    """The torch device: `auto` is CUDA where there is one.

    Raises
    ------
    ConfigError if CUDA is wanted and not there.
    """
    if wanted == "cpu":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if wanted == "cuda":
        raise ConfigError("device must be 'auto' or 'cpu' where no CUDA device is available, got 'cuda'")
    return "cpu"


def build_client(
    config: RunConfig,
    shard: Shard,
    state: ClientState,
    num_users: int,
    secret: int | None = None,
    threads: int = 1,
    refit_rows: Rows | None = None,
    user_metrics: Path | None = None,
) -> Node:
    """A SuperNode's users with all that they need to train and to be evaluated; the counterpart of `build_strategy`.

    Parameters
    ----------
    shard : the users' data. state : what their devices keep. num_users, secret, refit_rows, user_metrics : see `Node`.
    threads : of the compiled step and of the noise.
    """
    return Node(
        config, shard, state, build_mechanism(config, threads), num_users, secret, build_device(config.device), threads,
        refit_rows, user_metrics,
    )  # fmt: skip
