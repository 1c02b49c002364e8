"""A generated data set whose right answer is known: long-tailed popularity and communities of taste.

Users and items belong to communities. A user draws distinct items, `loyalty` of them in expectation from her own
community and each by its popularity, which falls like 1 / rank**exponent (Zipf). Whoever finds the communities ranks
better than popularity does, and a model that learns nothing ranks at chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastpfrec_flwr.data.errors import DataError
from fastpfrec_flwr.data.interactions import Ids, Interactions
from fastpfrec_flwr.randomness import derive_generator

# The set named "synthetic" is one data set, whatever the run's seed: seeds are compared on the same data.
NUM_USERS, NUM_ITEMS, NUM_COMMUNITIES, INTERACTIONS_PER_USER, DATA_SEED = 600, 400, 4, 25, 0
_BLOCK_CELLS = 1 << 22


@dataclass(frozen=True)
class SyntheticInteractions:
    """Generated pairs and the truth behind them.

    Attributes
    ----------
    users, items : (pairs,) int64, distinct pairs, by user.
    user_community : (num_users,) int64.
    item_community : (num_items,) int64.
    item_popularity : (num_items,) float64, sums to one.
    """

    users: NDArray[np.int64]
    items: NDArray[np.int64]
    user_community: NDArray[np.int64]
    item_community: NDArray[np.int64]
    item_popularity: NDArray[np.float64]


def synthetic_interactions(
    num_users: int = NUM_USERS,
    num_items: int = NUM_ITEMS,
    num_communities: int = NUM_COMMUNITIES,
    interactions_per_user: int = INTERACTIONS_PER_USER,
    seed: int = DATA_SEED,
    loyalty: float = 0.85,
    exponent: float = 0.9,
) -> SyntheticInteractions:
    """Generate interactions.

    Parameters
    ----------
    interactions_per_user : mean of the rows' lengths, which vary (negative binomial) between 2 and half the catalogue.
    loyalty : share of a user's draws that fall on her own community, before exhaustion of its items.
    exponent : of the popularity's decay; 0 is flat.

    Raises
    ------
    DataError if there are fewer than four items, or fewer users or items than communities.
    """
    if num_items < 4 or not 1 <= num_communities <= min(num_users, num_items) or not 0 <= loyalty <= 1:
        raise DataError(
            f"synthetic data need at least 4 items, a user and an item for each community and loyalty within 0..1; "
            f"got {num_users} users, {num_items} items, {num_communities} communities, loyalty {loyalty}"
        )
    generator = derive_generator(seed, "synthetic")
    user_community = generator.permutation(np.arange(num_users) % num_communities)
    item_community = generator.permutation(np.arange(num_items) % num_communities)
    popularity: NDArray[np.float64] = np.power(generator.permutation(num_items) + 1.0, -exponent)
    popularity /= popularity.sum()
    excess = max(interactions_per_user - 2, 0)
    lengths = 2 + (generator.negative_binomial(3, 3 / (3 + excess), num_users) if excess else np.zeros(num_users, int))
    lengths = np.minimum(lengths, num_items // 2)

    # Within and outside of the user's community, popularity is rescaled to the share that loyalty gives it.
    log_weight = np.empty((num_communities, num_items))  # (communities, items)
    for community in range(num_communities):
        own = item_community == community
        share = np.where(own, loyalty / popularity[own].sum(), (1 - loyalty) / max(popularity[~own].sum(), 1e-300))
        log_weight[community] = np.log(np.maximum(popularity * share, 1e-300))
    items = []
    for block in np.array_split(np.arange(num_users), max(1, num_users * num_items // _BLOCK_CELLS)):
        # Gumbel top-k: the k largest of log weight + Gumbel noise are k draws by weight without replacement.
        scores = log_weight[user_community[block]] + generator.gumbel(size=(len(block), num_items))
        ranked = np.argsort(-scores, axis=1, kind="stable")
        items += [np.sort(ranked[row, : lengths[user]]) for row, user in enumerate(block)]
    users = np.repeat(np.arange(num_users), lengths)
    return SyntheticInteractions(users, np.concatenate(items), user_community, item_community, popularity)


def read_synthetic(ids: Ids) -> dict[str, Interactions]:
    """Return the set named "synthetic" as if it had been read from a file."""
    made = synthetic_interactions()
    user_codes = np.array(ids.users.encode(map(str, range(NUM_USERS))), dtype=np.int32)
    item_codes = np.array(ids.items.encode(map(str, range(NUM_ITEMS))), dtype=np.int32)
    users, items = user_codes[made.users], item_codes[made.items]
    return {"all": Interactions(Path("synthetic"), users, items, None, None, "generated", len(users))}
