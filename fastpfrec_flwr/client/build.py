"""From a configuration to a client's objects: model, encoder, privacy mechanism and device are chosen here and nowhere else.

The encoder is `model.encoders.build_encoder`'s, which `Node.encoder` asks. The false items of the graph are drawn by
`model.graph.build_local_graphs`, whose `perturbation` is one function with four ways to draw.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

from fastpfrec_flwr.client.device import Allowance
from fastpfrec_flwr.client.node import Node
from fastpfrec_flwr.client.state import ClientState
from fastpfrec_flwr.config import ConfigError, RunConfig
from fastpfrec_flwr.data import Shard
from fastpfrec_flwr.evaluation.rows import Rows
from fastpfrec_flwr.model.named import load_model
from fastpfrec_flwr.privacy.eight_bits import EightBits
from fastpfrec_flwr.privacy.mechanism import (
    Clip,
    GaussianMechanism,
    HalfPrecision,
    LaplaceMechanism,
    Mechanism,
    NoNoise,
    SendsNothing,
)
from fastpfrec_flwr.privacy.sampled_rows import SampledRows


def build_mechanism(config: RunConfig, threads: int) -> Mechanism:
    """The privacy mechanism that the configuration asks for, and with it the form of the upload."""
    if config.model == "local-only":
        return SendsNothing()
    clip = Clip(config.row_clip, config.clip_norm, config.clip_kind == "l1", config.counted, config.coordinate_clip)
    scale, dense = config.effective_noise_scale, config.upload == "dense"
    mechanisms: dict[str, Mechanism] = {
        "none": NoNoise(clip),
        "laplace": LaplaceMechanism(clip, scale, dense, threads, config.secure_sum),
        "gaussian": GaussianMechanism(clip, scale, dense, threads, config.secure_sum),
    }
    mechanism = mechanisms[config.noise]
    if config.upload == "sampled":
        mechanism = SampledRows(mechanism, config.sampled_share, threads)
    if config.upload_precision == "int8":
        return EightBits(mechanism)
    return HalfPrecision(mechanism) if config.upload_precision == "float16" else mechanism


def build_device(wanted: str) -> str:
    """The torch device: `auto` is CUDA where there is one.

    Raises
    ------
    ConfigError if CUDA is wanted and not there.
    """
    if wanted == "cpu" or (wanted == "auto" and not _has_cuda_driver()):
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if wanted == "cuda":
        raise ConfigError("device must be 'auto' or 'cpu' where no CUDA device is available, got 'cuda'")
    return "cpu"


def node_class(config: RunConfig) -> type[Node]:
    """The class of a SuperNode that trains the configuration's model.

    Raises
    ------
    ConfigError if `model` names none.
    """
    found = Node if config.model == "fastpfrec" else load_model(config.model)
    if not (isinstance(found, type) and issubclass(found, Node)):
        raise ConfigError(f"model: {config.model} must be a subclass of fastpfrec_flwr.client.node.Node, got {found!r}")
    return found


@cache
def _has_cuda_driver() -> bool:
    """Whether asking torch for CUDA is worth its import, which takes seconds and a hundred megabytes."""
    try:
        ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError:
        return False
    return True


def build_client(
    config: RunConfig,
    shard: Shard,
    state: ClientState,
    num_users: int,
    secret: int | None = None,
    threads: int = 1,
    refit_rows: Rows | None = None,
    user_metrics: Path | None = None,
    allowance: Allowance | None = None,
) -> Node:
    """A SuperNode's users with all that they need to train and to be evaluated; the counterpart of `build_strategy`.

    Parameters
    ----------
    shard : the users' data. state : what their devices keep. num_users, secret, refit_rows, user_metrics,
        allowance : see `Node`.
    threads : of the compiled step and of the noise.

    Raises
    ------
    ConfigError if `model` names none that can be made.
    """
    return node_class(config)(
        config, shard, state, build_mechanism(config, threads), num_users, secret, build_device(config.device), threads,
        refit_rows, user_metrics, allowance,
    )  # fmt: skip
