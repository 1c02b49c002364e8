"""Nothing but a `PrivatizedUploads` out of a mechanism can be encoded, and no other code makes or sends one."""

import ast
import dataclasses
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import fastpfrec_flwr
from fastpfrec_flwr import messages
from fastpfrec_flwr.client.training import LocalUpdates
from fastpfrec_flwr.messages import TrainReport
from fastpfrec_flwr.privacy.mechanism import Clip, NoNoise, PrivatizedUploads

PACKAGE = Path(fastpfrec_flwr.__file__).parent
REPORT = TrainReport(1, 0, 0.0, 0)


def local_updates(values):
    clients, rows = 1, len(values)
    return LocalUpdates(
        np.arange(rows, dtype=np.int32), np.array([0, rows]), values, np.zeros((clients, 2), np.float32),
        np.zeros(clients), np.ones(clients, np.int64),
    )  # fmt: skip


VALUES = arrays(np.float32, (3, 2), elements=st.floats(-5, 5, width=32))


@settings(deadline=None, max_examples=50)
@given(VALUES, st.sampled_from(["updates", "namespace", "subclass", "tuple", "dict", "array"]))
def test_no_other_type_can_be_encoded(values, kind):
    class Pretender(PrivatizedUploads):
        def __post_init__(self):
            pass

    fields = {
        "nonces": np.ones(1, np.uint64), "pointer": np.array([0, 3]), "rows": np.arange(3, dtype=np.int32),
        "values": values, "cover_scale": 0.0,
    }  # fmt: skip
    thing = {
        "updates": lambda: local_updates(values),
        "namespace": lambda: SimpleNamespace(**fields),
        "subclass": lambda: Pretender(**fields, seal=None),
        "tuple": lambda: tuple(fields.values()),
        "dict": lambda: fields,
        "array": lambda: values,
    }[kind]()
    with pytest.raises(TypeError, match="PrivatizedUploads"):
        messages.encode_uploads(thing, REPORT)


@settings(deadline=None, max_examples=25)
@given(VALUES)
def test_what_a_mechanism_made_can_and_a_changed_copy_needs_its_seal(values):
    made = NoNoise(Clip(1.0, 0.0)).privatize(local_updates(values), np.ones(1, np.uint64), None, 3)
    assert "uploads" in messages.encode_uploads(made, REPORT)
    assert np.linalg.norm(made.values, axis=1).max() <= 1 + 1e-5
    with pytest.raises(TypeError, match=r"Mechanism\.privatize"):
        dataclasses.replace(made, values=values, seal=object())


@settings(deadline=None, max_examples=25)
@given(VALUES)
def test_masks_go_over_uploads_of_a_mechanism_alone(values):
    from fastpfrec_flwr.messages.secure import encode_masked
    from fastpfrec_flwr.privacy.masking import MaskedUploads, mask_uploads

    with pytest.raises(TypeError, match="PrivatizedUploads"):
        mask_uploads(local_updates(values), {}, {}, 3)
    with pytest.raises(TypeError, match="mask_uploads"):
        MaskedUploads(np.ones(1, np.uint64), np.zeros((1, 6), np.uint64), object())
    made = NoNoise(Clip(1.0, 0.0)).privatize(local_updates(values), np.ones(1, np.uint64), None, 3)
    with pytest.raises(TypeError, match="MaskedUploads"):
        encode_masked(made, REPORT)


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def names_of(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name.rsplit(".", 1)[-1]


def test_only_mechanisms_make_uploads():
    for made, room in (("PrivatizedUploads", "privacy/mechanism.py"), ("MaskedUploads", "privacy/masking.py")):
        makers = {
            name
            for name, tree in modules()
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == made
        }
        assert makers == {room}
    # Each seal is a module's own: nobody imports one.
    assert {name for name, tree in modules() if "_SEAL" in names_of(tree)} == {
        "privacy/mechanism.py",
        "privacy/masking.py",
    }
    for _, tree in modules():
        imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert "_SEAL" not in imported


def test_clients_build_no_records_of_their_own():
    """What a SuperNode answers comes from `messages`; of these only `encode_uploads` takes what training made."""
    records = {"ArrayRecord", "MetricRecord", "ConfigRecord", "Array", "encode_array"}
    for name, tree in modules():
        if name.startswith(("client/", "privacy/", "model/", "data/")):
            assert not records & set(names_of(tree)), name
    app = dict(modules())["client/app.py"]
    sent = {node.attr for node in ast.walk(app) if isinstance(node, ast.Attribute) and node.attr.startswith("encode_")}
    assert sent == {
        "encode_description", "encode_catalogue", "encode_done", "encode_uploads", "encode_metric_sums",
        "encode_refusal", "encode_hellos", "encode_parcels", "encode_masked", "encode_kept",
    }  # fmt: skip
