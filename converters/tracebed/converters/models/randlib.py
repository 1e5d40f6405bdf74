"""The random numbers of RANDLIB, for bitwise comparison of a model with its reference program.

Uniforms: two combined generators (L'Ecuyer 1988). Exponentials: algorithm SA (Ahrens and Dieter 1972). Gammas of
shape below 1: algorithm GS (Ahrens and Dieter 1974). All are in double precision, as the reference samples are.
"""

from __future__ import annotations

import math

M1, A1, Q1, R1 = 2147483563, 40014, 53668, 12211
M2, A2, Q2, R2 = 2147483399, 40692, 52774, 3791
SA = (0.6931472, 0.9333737, 0.9888778, 0.9984589, 0.9998293, 0.9999833, 0.9999986, 0.9999999)
"""Partial sums of ln(2)^k / k!, with the digits of RANDLIB."""


class Randlib:
    """A generator that starts in the state set by RANDLIB's `setall`."""

    def __init__(self, s1: int, s2: int) -> None:
        """Set the two seeds, each modulo the modulus of its generator."""
        self.s1, self.s2 = s1 % M1 or 1, s2 % M2 or 1

    def integer(self) -> int:
        """Draw an integer from 1 to 2147483562."""
        k = self.s1 // Q1
        self.s1 = A1 * (self.s1 - k * Q1) - k * R1
        if self.s1 < 0:
            self.s1 += M1
        k = self.s2 // Q2
        self.s2 = A2 * (self.s2 - k * Q2) - k * R2
        if self.s2 < 0:
            self.s2 += M2
        z = self.s1 - self.s2
        return z + M1 - 1 if z < 1 else z

    def uniform(self) -> float:
        """Draw from [0, 1], both ends included."""
        return (self.integer() - 1) / 2147483561

    def ranf(self) -> float:
        """Draw from (0, 1), as the distributions below require."""
        return self.integer() * 4.656613057e-10

    def exponential(self) -> float:
        """Draw from the exponential distribution with mean 1."""
        offset, u = 0.0, 2.0 * self.ranf()
        while u <= 1.0:
            offset += SA[0]
            u += u
        u -= 1.0
        if u <= SA[0]:
            return offset + u
        smallest = self.ranf()
        for q in SA[1:]:
            smallest = min(smallest, self.ranf())
            if u <= q:
                break
        return offset + smallest * SA[0]

    def gamma(self, shape: float, scale: float) -> float:
        """Draw from the gamma distribution with `shape`, 0 < shape < 1, and `scale`."""
        b = 1.0 + 0.3678794 * shape
        while True:
            p = b * self.ranf()
            if p < 1.0:
                x = math.exp(math.log(p) / shape)
                if self.exponential() >= x:
                    break
            else:
                x = -math.log((b - p) / shape)
                if self.exponential() >= (1.0 - shape) * math.log(x):
                    break
        return x / (1.0 / scale)
