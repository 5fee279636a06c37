"""The temperature of each token of a turn where spans of its text have their own (``Sampling.spans``). Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vtcli.protocols import Sampling, TemperatureSpan


class SpanReader:
    """Reads a turn token by token and knows the temperature of the next one.

    A span begins with the token after the one that completes its opening string and ends with the token that completes
    its closing string. Spans do not nest: inside one only its closing string is looked for. Turns begin outside.
    """

    def __init__(self, sampling: Sampling, piece: Callable[[int], str]) -> None:
        self.sampling, self.piece = sampling, piece
        self._span: TemperatureSpan | None = None
        self._tail = ""  # text in which a string may have begun

    @property
    def temperature(self) -> float:
        """Temperature of the next token."""
        return self.sampling.temperature if self._span is None else self._span.temperature

    def read(self, token_ids: Sequence[int]) -> None:
        """The tokens that were said since the last call."""
        for token_id in token_ids:
            self._tail += self.piece(token_id)
            while self._pass():
                pass
            wanted = [span.opening for span in self.sampling.spans] if self._span is None else [self._span.closing]
            self._tail = self._tail[-max(len(string) for string in wanted) :]

    def _pass(self) -> bool:
        """Goes past the next string that begins or ends a span, if it is there."""
        if self._span is not None:
            _, found, rest = self._tail.partition(self._span.closing)
            if found:
                self._span, self._tail = None, rest
            return bool(found)
        begun = [(self._tail.find(span.opening), -len(span.opening), span) for span in self.sampling.spans]
        begun = [one for one in begun if one[0] >= 0]
        if not begun:
            return False
        at, _, span = min(begun, key=lambda one: one[:2])  # the first; of two at one place the longer
        self._span, self._tail = span, self._tail[at + len(span.opening) :]
        return True


def scales(token_ids: Sequence[int], sampling: Sampling, piece: Callable[[int], str]) -> tuple[float, ...] | None:
    """Returns the divisor of each token's logits in its log-probability; None if it is the same for all. A greedy
    token's divisor is 1.

    Example: a turn at 0.7 has a span of temperature 0 from ``<code>`` to ``</code>``. The tokens ``a``, ``<code>``,
    ``b``, ``</code>``, ``c`` have 0.7, 0.7, 1, 1, 0.7.
    """
    if not sampling.spans:
        return None
    reader, out = SpanReader(sampling, piece), list[float]()
    for token_id in token_ids:
        out.append(reader.temperature or 1.0)
        reader.read((token_id,))
    return tuple(out)
