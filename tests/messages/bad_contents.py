"""The good content of an upload with one thing made wrong."""

import io

import numpy as np
from contents import K, arrays_of, good_content
from flwr.app import Array, ArrayRecord


def with_array(name, change):
    """A content whose array `name` is what `change` makes of the good one."""

    def build():
        content = good_content()
        content["uploads"][name] = Array(np.asarray(change(arrays_of(content)[name])))
        return content

    return build


def with_values(index, value):
    def change(values):
        values[index] = value
        return values

    return with_array("values", change)


def with_raw(name, stype="numpy.ndarray", data=None, dtype=None, shape=None):
    def build():
        content = good_content()
        old = content["uploads"][name]
        content["uploads"][name] = Array(
            dtype=dtype or old.dtype, shape=shape or tuple(old.shape), stype=stype,
            data=old.data if data is None else data(old) if callable(data) else data,
        )  # fmt: skip
        return content

    return build


def npz(array):
    file = io.BytesIO()
    np.savez(file, array.numpy())
    return file.getvalue()


def header(descr="<f4", shape=(6, K), fortran=False):
    return {"descr": descr, "fortran_order": fortran, "shape": shape}


def with_record(key, record):
    def build():
        content = good_content()
        content[key] = record
        return content

    return build


def without(key):
    def build():
        content = good_content()
        del content[key]
        return content

    return build


def renamed_array(old, new):
    def build():
        content = good_content()
        found = dict(content["uploads"].items())
        found[new] = found.pop(old) if old else found["values"]
        content["uploads"] = ArrayRecord(found)
        return content

    return build


def drop_array(name):
    content = good_content()
    found = dict(content["uploads"].items())
    del found[name]
    content["uploads"] = ArrayRecord(found)
    return content


def with_figure(**figures):
    def build():
        content = good_content()
        for key, value in figures.items():
            content["train"][key.replace("_", "-")] = value
        return content

    return build


def without_figure(key):
    def build():
        content = good_content()
        del content["train"][key]
        return content

    return build
