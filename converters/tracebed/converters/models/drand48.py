"""The random numbers of the reference program of the Lublin model: drand48 of POSIX, and gamma variates from it."""

from __future__ import annotations

import math

MULTIPLIER, INCREMENT, MODULUS = 0x5DEECE66D, 0xB, 1 << 48


class Drand48:
    """A generator like that of srand48 and drand48, a number at a time."""

    def __init__(self, seed: int) -> None:
        """Begin where srand48(`seed`) does, which takes 32 bits of it."""
        self._state = ((seed & 0xFFFF_FFFF) << 16) + 0x330E

    def uniform(self) -> float:
        """Return a number in [0, 1)."""
        self._state = (self._state * MULTIPLIER + INCREMENT) % MODULUS
        return self._state / MODULUS

    def gamma(self, shape: float, scale: float) -> float:
        """Return a gamma variate: an Erlang one for the whole part of `shape`, Jöhnk's method for the rest."""
        whole = math.floor(shape)
        logs = 0.0
        for _ in range(whole):
            logs += math.log(self.uniform())
        value, rest = -scale * logs, shape - whole
        if rest > 0.0:
            x, y = 1.0, 1.0
            while x + y > 1.0:
                x, y = self.uniform() ** (1.0 / rest), self.uniform() ** (1.0 / (1.0 - rest))
            value += scale * x / (x + y) * -math.log(self.uniform())
        return value
