"""Memory bandwidth of this node, by copying arrays as STREAM's `copy` does."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import psutil

ARRAY_BYTES = 32 * 1024 * 1024
"""Of each thread's two arrays: together beyond its share of the last cache."""
MAX_THREADS = 64
"""Fewer saturate the memory of today's sockets."""
ROUNDS = 5
COPIES = 2
"""A round, so that the threads' start counts for little."""
MAX_SHARE_OF_FREE_MEMORY = 0.25


def memory_bandwidth_gb_per_s(max_threads: int = MAX_THREADS) -> float | None:
    """Best of five rounds in which one thread a physical core copies an array, GB/s (10^9 bytes); on the CPUs that the
    calling thread may use.

    Bytes read and bytes written count, as in STREAM (McCalpin, https://www.cs.virginia.edu/stream/ref.html), not what
    the hardware reads besides to fill cache lines. Interference only ever slows a round, so the best one tells most of
    the machine. Takes 0.1 to 0.5 s; None where that much memory is not free.
    """
    num_threads = min(len(os.sched_getaffinity(0)), psutil.cpu_count(logical=False) or 1, max_threads)
    if 2 * ARRAY_BYTES * num_threads > MAX_SHARE_OF_FREE_MEMORY * psutil.virtual_memory().available:
        return None
    barrier = Barrier(num_threads)
    with ThreadPoolExecutor(num_threads) as pool:
        by_thread = list(pool.map(_copy_rounds, [barrier] * num_threads))
    rounds = zip(*by_thread, strict=True)
    best_s: float = min(max(end for _, end in spans) - min(begun for begun, _ in spans) for spans in rounds)
    return round(2 * ARRAY_BYTES * COPIES * num_threads / best_s / 1e9, 2)


def _copy_rounds(barrier: Barrier) -> list[tuple[float, float]]:
    """Start and end of each round, on arrays that this thread touched first, so that they lie in memory near it."""
    source, target = (np.full(ARRAY_BYTES, fill, dtype=np.uint8) for fill in (1, 0))
    spans = []
    for _ in range(ROUNDS):
        barrier.wait()
        begun = time.perf_counter()
        for _ in range(COPIES):
            np.copyto(target, source)  # without the interpreter's lock
        spans.append((begun, time.perf_counter()))
    return spans
