"""The temperature of each token of a turn in which spans of the text have their own (``Sampling.spans``). Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vtcli.protocols import Sampling, TemperatureSpan


class SpanReader:
    """Reads a turn token by token and returns the temperature of the next one.

    A span begins after the token that completes its opening string and ends with the token that completes its closing
    string. Spans do not nest: inside a span only its closing string counts. A turn begins outside of spans.
    """

    def __init__(self, sampling: Sampling, piece: Callable[[int], str]) -> None:
        self.sampling, self.piece = sampling, piece
        self._span: TemperatureSpan | None = None
        self._tail = ""  # text in which a string may have begun

    @property
    def temperature(self) -> float:
        """The temperature of the next token."""
        return self.sampling.temperature if self._span is None else self._span.temperature

    def read(self, token_ids: Sequence[int]) -> None:
        """Reads the tokens that were sampled since the last call."""
        for token_id in token_ids:
            self._tail += self.piece(token_id)
            while self._pass():
                pass
            wanted = [span.opening for span in self.sampling.spans] if self._span is None else [self._span.closing]
            # Only the longest wanted string can still be incomplete, so the tail never grows with the turn.
            self._tail = self._tail[-max(len(string) for string in wanted) :]

    def _pass(self) -> bool:
        """Moves past the next string that begins or ends a span. Returns False without one."""
        if self._span is not None:
            _, mark, rest = self._tail.partition(self._span.closing)
            if mark:
                self._span, self._tail = None, rest
            return bool(mark)
        begun = [(self._tail.find(span.opening), -len(span.opening), span) for span in self.sampling.spans]
        begun = [one for one in begun if one[0] >= 0]
        if not begun:
            return False
        at, _, span = min(begun, key=lambda one: one[:2])  # the first; the longer of two at one place
        self._span, self._tail = span, self._tail[at + len(span.opening) :]
        return True


def scales(token_ids: Sequence[int], sampling: Sampling, piece: Callable[[int], str]) -> tuple[float, ...] | None:
    """Returns the divisor of each token's logits in its log-probability, or None if all tokens share one. A greedy
    token's divisor is 1, because its log-probability is of temperature 1.

    Example: a turn at 0.7 has a span of temperature 0 from ``<code>`` to ``</code>``. The tokens ``a``, ``<code>``,
    ``b``, ``</code>``, ``c`` have 0.7, 0.7, 1, 1, 0.7.
    """
    if not sampling.spans:
        return None
    reader, out = SpanReader(sampling, piece), list[float]()
    for token_id in token_ids:
        # Before reading: a token that closes a span was still drawn inside it.
        out.append(reader.temperature or 1.0)
        reader.read((token_id,))
    return tuple(out)
