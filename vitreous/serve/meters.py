"""What `/metrics` reports to Prometheus about the server; every server has its own registry."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Meters:
    """Counts of requests, images and batches, and how long requests took."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        given = {"registry": self.registry, "namespace": "vitreous"}
        self.requests = Counter("requests", "Requests answered", ["route", "status"], **given)
        self.seconds = Histogram("request_seconds", "Time to answer", ["route"], buckets=SECONDS, **given)
        self.images = Counter("images", "Images, by what became of them", ["outcome"], **given)
        self.batches = Histogram(
            "batch_size", "Images computed at once", buckets=(1, 2, 4, 8, 16, 32, 64), **given
        )
        self.inside = Gauge("images_inside", "Images being received, waiting or computed", **given)
        self.ready = Gauge("ready", "1 when the model is warm and requests are taken", **given)
        self._known: dict[tuple[str, int], tuple[Counter, Histogram]] = {}

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count one answer."""
        known = self._known.get((route, status))
        if known is None:  # looking a label up costs more than counting
            known = self.requests.labels(route, str(status)), self.seconds.labels(route)
            self._known[route, status] = known
        known[0].inc()
        known[1].observe(seconds)

    def text(self) -> bytes:
        """Return the exposition format."""
        return generate_latest(self.registry)
