"""Exports: what goes in comes out, in every format and precision; damage, foreign files and wrong catalogues are refused."""

import hashlib
import json

import numpy as np
import pytest

from fastpfrec_flwr.catalogue import Catalogue, CatalogueError
from fastpfrec_flwr.model.linear import LinearForm
from fastpfrec_flwr.recommend import LocalModel, ModelError, Recommender
from fastpfrec_flwr.recommend.artifact import npz_bytes, pack, quantised
from fastpfrec_flwr.recommend.export import FORMATS, export_model
from fastpfrec_flwr.recommend.loading import load_model

BPR = LinearForm(0.25, 0.75, 1.0, False, 0.0)
CCL = LinearForm(0.0, 1.0, 0.0, True, 0.03)
SOLVED = LinearForm(0.0, 0.0, 0.0, False, 0.0, background=0.05, ridge=1.0)
# What rounding may do to a score, relative to the largest.
LOSS = {"fp32": 1e-6, "fp16": 2e-3, "int8": 2e-2}


def model(form=BPR, items=50, reserved=3, k=8, seed=1):
    generator = np.random.default_rng(seed)
    names = Catalogue(tuple(f"item {n}" for n in range(items)), reserved, 2, {"item 7": "Sieben – é"}, "shop")
    table = generator.normal(0, 0.4, (items + reserved, k)).astype(np.float32)
    counts = generator.integers(0, 30, items + reserved).astype(np.float32) if form.popularity_weight else None
    return LocalModel(table, form, names, counts, {"run": {"data_set": "shop", "state_id": "s"}, "privacy": {}})


@pytest.mark.parametrize("form", [BPR, CCL, SOLVED], ids=["bpr", "ccl", "least squares"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("file_format", FORMATS)
def test_every_export_gives_the_scores_back(tmp_path, form, precision, file_format):
    for package in {"safetensors": ["safetensors"], "onnx": ["onnx", "onnxruntime"]}.get(file_format, []):
        pytest.importorskip(package)
    before = model(form)
    if form == SOLVED and file_format == "onnx":
        with pytest.raises(ModelError, match="format onnx has no operator that solves"):
            export_model(before, tmp_path / "m.onnx", file_format, precision)
        return
    done = export_model(before, tmp_path / f"m.{file_format}", file_format, precision)
    after = load_model(done.path)
    assert after.catalogue == before.catalogue
    assert after.manifest["run"] == before.manifest["run"]
    generator = np.random.default_rng(5)
    histories = [generator.choice(50, size, replace=False) for size in (0, 1, 4, 30)]
    for history, private in [(h, p) for h in histories for p in (None, generator.normal(0, 1, 8).astype(np.float32))]:
        expected, got = before.scores(history, private), after.scores(history, private)
        assert np.isneginf(got[history]).all()
        assert np.isneginf(got[50:]).all()
        finite = np.isfinite(expected)
        assert (np.isfinite(got) == finite).all()
        scale = np.abs(expected[finite]).max()
        np.testing.assert_allclose(got[finite], expected[finite], atol=LOSS[precision] * scale, rtol=0)
    beside = json.loads(done.manifest.read_text())
    assert beside["sha256"] == hashlib.sha256(done.path.read_bytes()).hexdigest() == done.sha256
    assert beside["catalogue"]["hash"] == before.catalogue.hash
    assert (beside["format"], beside["format_version"], beside["precision"]) == ("fastpfrec-model", 1, precision)


def test_quantised_rows_by_hand():
    values, scales = quantised(np.array([[127, -64, 0.4], [0, 0, 0], [-0.5, 0.25, 0.126]], np.float32))
    assert values.tolist() == [[127, -64, 0], [0, 0, 0], [-127, 64, 32]]
    np.testing.assert_allclose(scales, [1, 1, 0.5 / 127])


def test_quantisation_is_never_off_by_more_than_half_a_step():
    table = model(items=500).table
    values, scales = quantised(table)
    assert (np.abs(values * scales[:, None] - table) <= scales[:, None] * 0.5001).all()


def test_a_form_says_what_it_has_and_older_files_say_less():
    assert set(BPR.to_dict()) == {"user_weight", "neighbour_weight", "norm_exponent", "unit_users", "popularity_weight"}
    for form in (BPR, CCL, SOLVED):
        assert LinearForm(**json.loads(json.dumps(form.to_dict()))) == form


def test_the_same_model_gives_the_same_bytes():
    assert npz_bytes(*pack(model(), "int8")) == npz_bytes(*pack(model(), "int8"))


def test_smaller_precisions_make_smaller_files(tmp_path):
    sizes = [
        export_model(model(items=2000, k=64), tmp_path / f"{p}.npz", "npz", p).bytes for p in ("fp32", "fp16", "int8")
    ]
    table = 4 * 64 * 2003
    assert sizes[0] - sizes[1] == pytest.approx(table / 2, abs=2000)
    assert sizes[0] - sizes[2] == pytest.approx(table * 3 / 4 - 4 * 2003, abs=2000)


def test_a_changed_file_is_refused(tmp_path):
    done = export_model(model(), tmp_path / "m.npz")
    with np.load(done.path) as found:
        arrays = dict(found)
    arrays["item_table"][3, 3] += 1
    np.savez(done.path, **arrays)
    with pytest.raises(ModelError, match="checksum"):
        load_model(done.path)
    done.path.write_bytes(done.path.read_bytes()[:-200])
    with pytest.raises(ModelError, match="is no exported model"):
        load_model(done.path)


def test_a_newer_format_is_refused(tmp_path):
    arrays, catalogue, manifest = pack(model(), "fp32")
    (tmp_path / "m.npz").write_bytes(npz_bytes(arrays, catalogue, {**manifest, "format_version": 2}))
    with pytest.raises(ModelError, match=r"format 2, this app reads 1; upgrade"):
        load_model(tmp_path / "m.npz")


@pytest.mark.parametrize("name", ["x.npz", "x.safetensors", "x.onnx", "x.txt"])
def test_other_files_are_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"something else")
    pytest.importorskip({"x.safetensors": "safetensors", "x.onnx": "onnxruntime"}.get(name, "numpy"))
    with pytest.raises(ModelError, match=str(tmp_path)):
        load_model(tmp_path / name)
    with pytest.raises(ModelError, match="no such run folder or file"):
        load_model(tmp_path / "missing.npz")
    with pytest.raises(ModelError, match="holds no finished run"):
        load_model(tmp_path)


def test_what_cannot_be_exported_says_why(tmp_path):
    big = LocalModel(np.full((1, 2), 1e6, np.float32), BPR, Catalogue(("a",)))
    for change, words in (
        ({"model": big, "precision": "fp16"}, "beyond float16"),
        ({"precision": "int4"}, "must be one of fp32, fp16, int8"),
        ({"file_format": "csv"}, "must be one of npz, safetensors, onnx"),
        ({"path": tmp_path / "m.bin"}, r"ends in \.npz"),
        ({"path": tmp_path / "file" / "m.npz"}, "cannot be written"),
    ):
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(ModelError, match=words):
            export_model(**{"model": model(), "path": tmp_path / "m.npz", **change})


def test_titles_come_from_a_catalogue_that_is_the_models_own(tmp_path):
    done = export_model(model(), tmp_path / "m.npz")
    own = model().catalogue
    titled = Catalogue(own.ids, own.reserved, 2, {each: each.upper() for each in own.ids})
    titled.save(tmp_path / "titled.json")
    items = Recommender.load(done.path, tmp_path / "titled.json").recommend(["item 1"], 5).items
    assert [each.title for each in items] == [each.item.upper() for each in items]
    Catalogue(own.ids[::-1], own.reserved).save(tmp_path / "other.json")
    with pytest.raises(
        ModelError, match=r"the model has catalogue version 2 .* the catalogue file is catalogue version 1"
    ):
        Recommender.load(done.path, tmp_path / "other.json")
    with pytest.raises(CatalogueError, match="cannot be read"):
        Recommender.load(done.path, tmp_path / "none.json")
