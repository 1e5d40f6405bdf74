"""Random numbers of the Lublin model's reference program: drand48 of POSIX and gamma variates drawn with it."""

from __future__ import annotations

import math

MULTIPLIER, INCREMENT, MODULUS = 0x5DEECE66D, 0xB, 1 << 48


class Drand48:
    """A generator that is equivalent to srand48 and drand48."""

    def __init__(self, seed: int) -> None:
        """Set the state as srand48(`seed`) does, from the low 32 bits of the seed."""
        self._state = ((seed & 0xFFFF_FFFF) << 16) + 0x330E

    def uniform(self) -> float:
        """Draw a number from [0, 1)."""
        self._state = (self._state * MULTIPLIER + INCREMENT) % MODULUS
        return self._state / MODULUS

    def gamma(self, shape: float, scale: float) -> float:
        """Draw a gamma variate: Erlang for the integer part of `shape`, Jöhnk's method for the fraction."""
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
