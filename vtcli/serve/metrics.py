"""Metrics for Prometheus. A metric with vLLM's meaning has vLLM's name; a rollout counts as one of its requests.

No label contains text of a client or a model: a name that is not one of the environment's tools counts as ``other``,
because each new label value is a new time series, and a model could make them without end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from vtcli.schema import EnvTurn, Stop, Trajectory

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 240, 480, 960)
GONE = 499
"""The status of a question whose client disconnected, as nginx logs it."""

TURNS = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20)


class Metrics:
    """The metrics of one server."""

    def __init__(self, model: str, tools: Iterable[str] = (), other: str = "unknown") -> None:
        self._tools, self._other = frozenset(tools), other
        self._registry = CollectorRegistry()
        self._label = {"model_name": model}
        self.running = self._gauge("vllm:num_requests_running", "Rollouts under way.")
        self.waiting = self._gauge("vllm:num_requests_waiting", "Rollouts that wait for their place.")
        self._finished = self._counter("vllm:request_success", "Rollouts that ended.", "finished_reason")
        self._read = self._counter("vllm:prompt_tokens", "Tokens of prompts and observations.")
        self._written = self._counter("vllm:generation_tokens", "Tokens that the policy sampled.")
        self._queued = self._histogram("vllm:request_queue_time_seconds", "Time in the queue.", SECONDS)
        self._whole = self._histogram("vllm:e2e_request_latency_seconds", "Time of a rollout, queue included.", SECONDS)
        self._turns = self._histogram("vtcli:turns", "Policy turns of a rollout.", TURNS)
        self._stops = self._counter("vtcli:stops", "Rollouts by their reason to stop.", "stop")
        self._calls = self._counter("vtcli:tool_calls", "Calls of tools or code.", "tool", "status")
        self._call_s = self._histogram("vtcli:tool_seconds", "Time of a call.", SECONDS, "tool")
        self._images = self._counter("vtcli:images", "Images that tools or code made.")
        self._responses = self._counter("vtcli:responses", "Responses to questions by their HTTP status.", "status")
        self._cancelled = self._counter("vtcli:cancelled", "Questions whose client went away.")

    def watch(self, running: Callable[[], int], waiting: Callable[[], int]) -> None:
        """Sets the functions that the two gauges read."""
        self.running.set_function(running)
        self.waiting.set_function(waiting)

    def ended(self, found: Trajectory, finish: str, queued_s: float, whole_s: float) -> None:
        """Counts one rollout; ``finish`` is stop, length or error."""
        observations = [turn for turn in found.turns if isinstance(turn, EnvTurn)]
        self._finished.labels(**self._label, finished_reason=finish).inc()
        self._read.labels(**self._label).inc(len(found.prompt_ids) + sum(len(t.token_ids) for t in observations))
        self._written.labels(**self._label).inc(sum(len(turn.token_ids) for turn in found.policy_turns))
        self._queued.labels(**self._label).observe(queued_s)
        self._whole.labels(**self._label).observe(whole_s)
        self._turns.labels(**self._label).observe(len(found.policy_turns))
        self._stops.labels(**self._label, stop=str(Stop(found.stop))).inc()
        for result in found.results:
            tool = result.name if result.name in self._tools else self._other
            self._calls.labels(**self._label, tool=tool, status=result.status).inc()
            self._call_s.labels(**self._label, tool=tool).observe(result.wall_s)
        self._images.labels(**self._label).inc(sum(len(turn.observation.images) for turn in observations))

    def responded(self, status: int) -> None:
        """Counts the outcome of one question. A client that disconnected gets no status."""
        if status == GONE:
            self._cancelled.labels(**self._label).inc()
        else:
            self._responses.labels(**self._label, status=str(status)).inc()

    @property
    def totals(self) -> dict[str, float]:
        """All counters for a tracker, such as ``generation_tokens``, ``responses.200`` and ``tool_calls.crop.ok``."""
        found = dict[str, float]()
        for sample in (sample for family in self._registry.collect() for sample in family.samples):
            if sample.name.endswith("_total"):
                name = sample.name.removesuffix("_total").rpartition(":")[2]
                labels = [value for key, value in sample.labels.items() if key not in self._label]
                found[".".join((name, *labels))] = sample.value
        return found

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def _gauge(self, name: str, what: str) -> Gauge:
        return Gauge(name, what, [*self._label], registry=self._registry).labels(**self._label)

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(name, what, [*self._label, *labels], registry=self._registry)

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, what, [*self._label, *labels], registry=self._registry, buckets=buckets)
