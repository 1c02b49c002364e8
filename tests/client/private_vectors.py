"""Small private vectors for the tests of what a device keeps."""

import numpy as np

K = 4


def filled(users, value):
    return np.full((len(users), K), value, np.float32)


def nothing(users):
    return np.full((len(users), K), -1, np.float32)
