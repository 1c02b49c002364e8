"""The `.onnx` form: a graph that turns a history into scores, for runtimes that know nothing of this project.

Inputs `history` (n,) int64 rows of distinct items and `private` (k,) float32, which may be left out (zero: a new user). Output
`scores` (rows,) float32, minus infinity for what is in the history and for reserved rows. Catalogue (id -> row) and manifest stand
in the model's metadata. The table is stored in the export's precision and becomes float32 in the graph. Needs the extra `export`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.catalogue import Catalogue, CatalogueError
from fastpfrec_flwr.recommend.artifact import FORMAT, Arrays
from fastpfrec_flwr.recommend.errors import ModelError
from fastpfrec_flwr.recommend.model import LocalModel
from fastpfrec_flwr.recommend.safetensors_form import missing

OPSET, IR_VERSION = 17, 8  # of 2022: old runtimes have them


def onnx_bytes(arrays: Arrays, catalogue: str, manifest: dict[str, Any], loaded: LocalModel) -> bytes:
    """The file's content.

    Parameters
    ----------
    arrays, catalogue, manifest : of `artifact.pack`. loaded : the model as loading the arrays would give it.

    Raises
    ------
    ModelError if onnx is not installed, or the model solves a least squares for each user.
    """
    try:
        from onnx import TensorProto, checker, helper, numpy_helper
    except ImportError:
        raise missing("onnx") from None
    form, k = loaded.form, loaded.table.shape[1]
    if form.least_squares:
        raise ModelError(
            "format onnx has no operator that solves for a user (encoder = 'spectral'): take npz or safetensors"
        )
    constants = {
        "item_table": arrays["item_table"],
        "weights": loaded.weights,
        "bias": loaded.bias,
        "stranger": loaded.stranger,
        "private": np.zeros(k, np.float32),
        "user_weight": np.float32(form.user_weight),
        "neighbour_weight": np.float32(form.neighbour_weight),
        "floor": np.float32(1e-12),
        "one": np.float32(1),
        "none": np.int64(0),
        "lowest": np.float32(-np.inf),
        "axis_0": np.array([0], np.int64),
        "axis_1": np.array([1], np.int64),
    }
    node = helper.make_node
    if manifest["precision"] == "fp32":
        constants["table"] = constants.pop("item_table")
        nodes = []
    elif manifest["precision"] == "fp16":
        nodes = [node("Cast", ["item_table"], ["table"], to=TensorProto.FLOAT)]
    else:
        constants["item_scales"] = arrays["item_scales"]
        nodes = [node("DequantizeLinear", ["item_table", "item_scales"], ["table"], axis=0)]
    nodes += [
        node("Gather", ["table", "history"], ["rows"]),  # (n, k)
        node("Gather", ["weights", "history"], ["row_weights"]),
        node("Unsqueeze", ["row_weights", "axis_1"], ["column"]),
        node("Mul", ["rows", "column"], ["weighted"]),
        node("ReduceSum", ["weighted", "axis_0"], ["total"], keepdims=0),  # (k,)
        node("Size", ["history"], ["count"]),
        node("Cast", ["count"], ["length"], to=TensorProto.FLOAT),
        node("Max", ["length", "one"], ["at_least_one"]),
        node("Sqrt", ["at_least_one"], ["root"]),
        node("Div", ["neighbour_weight", "root"], ["share"]),
        node("Mul", ["total", "share"], ["of_items"]),
        node("Mul", ["private", "user_weight"], ["of_device"]),
        node("Add", ["of_items", "of_device"], ["somebody"]),
    ]
    if form.unit_users:
        nodes += [
            node("ReduceL2", ["somebody"], ["norm"], keepdims=0),
            node("Max", ["norm", "floor"], ["safe_norm"]),
            node("Div", ["somebody", "safe_norm"], ["user"]),
        ]
    else:
        nodes.append(node("Identity", ["somebody"], ["user"]))
    nodes += [
        # As a matrix of one row on the left: the runtime lays a constant right side out for it once, when it loads the model.
        node("Transpose", ["table"], ["columns"], perm=[1, 0]),
        node("Unsqueeze", ["user", "axis_0"], ["one_user"]),
        node("MatMul", ["one_user", "columns"], ["one_row"]),
        node("Squeeze", ["one_row", "axis_0"], ["products"]),  # (rows,)
        node("Add", ["products", "bias"], ["of_somebody"]),
        node("Equal", ["count", "none"], ["empty"]),
        node("Where", ["empty", "stranger", "of_somebody"], ["all_scores"]),
        node("Shape", ["history"], ["shape"]),
        node("Expand", ["lowest", "shape"], ["seen"]),
        node("ScatterElements", ["all_scores", "history", "seen"], ["scores"], axis=0),
    ]
    graph = helper.make_graph(
        nodes,
        "fastpfrec",
        [
            helper.make_tensor_value_info("history", TensorProto.INT64, ["n"]),
            helper.make_tensor_value_info("private", TensorProto.FLOAT, [k]),
        ],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [len(loaded.table)])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="fastpfrec-flwr")
    model.ir_version = IR_VERSION
    helper.set_model_props(model, {"catalogue": catalogue, "manifest": json.dumps(manifest, sort_keys=True)})
    checker.check_model(model)
    return bytes(model.SerializeToString())


@dataclass(frozen=True)
class OnnxScorer:
    """Such a file in ONNX Runtime, behind the face that the recommender asks."""

    session: Any
    catalogue: Catalogue
    manifest: dict[str, Any]

    @staticmethod
    def load(path: Path, catalogue: Catalogue | None = None) -> OnnxScorer:
        """Open a file.

        Raises
        ------
        ModelError if it is none of ours, or onnxruntime is not installed.
        """
        try:
            import onnxruntime
        except ImportError:
            raise missing("onnxruntime") from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # a matrix-vector product has no work for more
        options.log_severity_level = 3
        try:
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            texts = session.get_modelmeta().custom_metadata_map
            manifest = json.loads(texts["manifest"])
            if manifest["format"] != FORMAT:
                raise KeyError("format")
            own = Catalogue.from_json(texts["catalogue"], str(path))
        except CatalogueError:
            raise
        except Exception as error:  # onnxruntime's errors have no common class of their own
            raise ModelError(f"{path}: is no exported model ({error}); make one with `fastpfrec export`") from error
        scorer = OnnxScorer(session, own, manifest)
        if catalogue is None:
            return scorer
        if catalogue.hash != own.hash:
            raise ModelError(f"{path}: has {own.label}, the catalogue file is {catalogue.label}; give the model's own")
        return replace(scorer, catalogue=catalogue)

    def fitted(self, rows: NDArray[np.int64]) -> None:
        """The graph ranks and does not fit: a vector has to come from elsewhere (`fitting.fitted_vector`)."""
        return

    def scores(self, rows: NDArray[np.int64], private: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """See `model.Scorer`."""
        inputs: dict[str, Any] = {"history": np.asarray(rows, np.int64)}
        if private is not None:
            inputs["private"] = private
        scores: NDArray[np.float32] = self.session.run(["scores"], inputs)[0]
        return scores.copy()
