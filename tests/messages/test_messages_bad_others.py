"""Orders, descriptions, sums and catalogues that make no sense."""

import pytest
from contents import ORDER, answer, sums_of
from flwr.app import ConfigRecord, RecordDict

from fastpfrec_flwr import messages
from fastpfrec_flwr.messages import Description, RefusedError


@pytest.mark.parametrize(
    ("key", "value"),
    [("clients", True), ("clients", 1.0), ("report-loss", 1), ("phase", 3), ("server-round", "7"), ("restore", [1])],
)
def test_orders_of_wrong_types_are_refused(key, value):
    content = messages.encode_query(ORDER)
    content["order"][key] = value
    with pytest.raises(RefusedError, match=key):
        messages.decode_query(content)


@pytest.mark.parametrize(
    "change",
    [{"users": -1}, {"users": 10**9 + 1}, {"num-items": 0}, {"users": 1.5}, {"users": True}, {"data": 1}, {"x": 1}],
)
def test_bad_descriptions_are_refused(change):
    content = messages.encode_description(Description(0, 5, 9, "c", "d", "n"))
    for key, value in change.items():
        content["description"][key] = value
    with pytest.raises(RefusedError, match="description"):
        messages.decode_description(answer(content))


@pytest.mark.parametrize(
    "change",
    [
        {"users": -1}, {"users": 0.5}, {"users": float("nan")}, {"users": float("inf")}, {"users": 10**12}, {"users": [1]},
        {"hits-10": 10**12}, {"extra": 1}, {"ndcg-grid-10": 1 << 62},
    ],
)  # fmt: skip
def test_bad_metric_sums_are_refused(change):
    content = messages.encode_metric_sums({"test": sums_of(5)})
    for key, value in change.items():
        content["test"][key] = value
    with pytest.raises(RefusedError, match="evaluate reply"):
        messages.decode_metric_sums(answer(content))


@pytest.mark.parametrize("ids", [["a"], ["a", "b", "c"], [1, 2], "ab", [True, False]])
def test_bad_catalogues_are_refused(ids):
    content = RecordDict({"catalogue": ConfigRecord({"item-ids": ids, "report": ""})})
    with pytest.raises(RefusedError, match="item-ids must be 2 strings"):
        messages.decode_catalogue(answer(content), 2)
