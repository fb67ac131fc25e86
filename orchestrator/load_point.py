"""Which load a workload puts on the server: a dataset, and how many requests or how often. Pure."""

from orchestrator.config import Level, Strict


class LoadPoint(Strict):
    """One dataset at one level of load. Exactly one of the three levels is given."""

    dataset: str
    """Its name; with a bucket of prompt lengths `code:512-2048`, which is a dataset of its own in all that is decided:
    the best k may depend on the length."""
    max_concurrency: int | None
    """Closed loop: requests under way at any time. None in an open loop."""
    request_rate: float | None = None
    """Open loop: requests/s."""
    log_speed: float | None = None
    """Replay of a log: times as fast as it was."""

    @property
    def is_open_loop(self) -> bool:
        return self.max_concurrency is None

    @property
    def level(self) -> Level:
        """Place on the axis of load; points compare only within one kind, and a sweep has one kind."""
        level = next(each for each in (self.max_concurrency, self.request_rate, self.log_speed) if each is not None)
        return level

    @property
    def level_label(self) -> str:
        """`c4`, `r2.5` or `x1`."""
        kind = "c" if self.max_concurrency is not None else "r" if self.request_rate is not None else "x"
        return f"{kind}{self.level:g}"

    @property
    def level_text(self) -> str:
        """`concurrency 4`, `2.5 requests/s` or `log at 1x`."""
        if self.max_concurrency is not None:
            return f"concurrency {self.max_concurrency}"
        return f"{self.request_rate:g} requests/s" if self.request_rate is not None else f"log at {self.log_speed:g}x"

    @property
    def point_name(self) -> str:
        """`code@c4`, `code@r2.5`, `code@c4:512-2048`."""
        name, _, bucket = self.dataset.partition(":")
        return f"{name}@{self.level_label}" + (f":{bucket}" if bucket else "")


def prompt_set_name(dataset: str, bucket: tuple[int, int] | None) -> str:
    """`code`, or `code:512-2048` for the prompts in a bucket. A dataset's own name has no colon."""
    return dataset if bucket is None else f"{dataset}:{bucket[0]}-{bucket[1]}"
