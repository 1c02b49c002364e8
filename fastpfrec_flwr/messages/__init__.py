"""What crosses the wire between the tiers. The only place that knows record keys.

Encoding takes what may leave (`PrivatizedUploads`, metric sums, public settings) and nothing else. Decoding trusts nothing: exact
keys, dtypes and shapes, sizes checked before anything of that size exists, finite values, row ids sorted and in range. A message
that cannot be read is refused whole; in one that can, a bad upload costs its own client only.

Arrays travel as `.npy` (what Flower itself uses), built and read without a second copy.
"""

from fastpfrec_flwr.config_privacy import LARGEST_VALUE
from fastpfrec_flwr.messages.arrays import NPY, decode_array, encode_array
from fastpfrec_flwr.messages.metric_sums import decode_metric_sums, encode_metric_sums
from fastpfrec_flwr.messages.model import (
    decode_evaluate,
    decode_item_counts,
    decode_train,
    encode_evaluate,
    encode_model,
    encode_train,
)
from fastpfrec_flwr.messages.orders import (
    Description,
    Order,
    decode_catalogue,
    decode_description,
    decode_query,
    encode_catalogue,
    encode_description,
    encode_done,
    encode_query,
)
from fastpfrec_flwr.messages.records import LONGEST_REASON, RefusedError, encode_refusal, one_line, usable_content
from fastpfrec_flwr.messages.uploads import (
    DecodedUploads,
    TrainReport,
    decode_uploads,
    encode_uploads,
    row_bytes,
    select_clients,
)

__all__ = [
    "LARGEST_VALUE",
    "LONGEST_REASON",
    "NPY",
    "DecodedUploads",
    "Description",
    "Order",
    "RefusedError",
    "TrainReport",
    "decode_array",
    "decode_catalogue",
    "decode_description",
    "decode_evaluate",
    "decode_item_counts",
    "decode_metric_sums",
    "decode_query",
    "decode_train",
    "decode_uploads",
    "encode_array",
    "encode_catalogue",
    "encode_description",
    "encode_done",
    "encode_evaluate",
    "encode_metric_sums",
    "encode_model",
    "encode_query",
    "encode_refusal",
    "encode_train",
    "encode_uploads",
    "one_line",
    "row_bytes",
    "select_clients",
    "usable_content",
]  # fmt: skip
