"""The sizes of the tiny Moshi of these tests, and what it hears."""

import numpy as np

SIZE = 1920
WINDOW = 9
BLOCK_SIZE = 4
LEVELS = 4
BLOCKS_PER_SLOT = 3  # claimed; two hold the 8 positions that are kept


def audio(num_frames, seed=0):
    return np.random.default_rng(seed).normal(0, 0.3, num_frames * SIZE).astype(np.float32)
