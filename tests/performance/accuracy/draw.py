"""Draw the workloads of the experiments in this folder: 30 jobs of each model at an offered load of 0.9, 70 % of the
rigid jobs malleable, for two computing nodes and for four emulated nodes of one core.

python draw.py
"""

from __future__ import annotations

import tracebed.api as tb

MODELS = {
    "cirne": (tb.generate("cirne", nodes=16, jobs=30, seed=13), 1800),
    "lublin99": (tb.generate("lublin99", nodes=16, jobs=30, seed=14), 1800),
    "feitelson96": (tb.generate("feitelson96", nodes=16, jobs=30, seed=3), 1200),
    "downey97": (tb.generate("downey97", nodes=16, jobs=30, seed=9), 1800),
    "sd-5": (tb.scale(tb.generate("sd-5", seed=2), window=1170, start=12 * 3600), 1800),
}
"""Model -> its jobs, and the run time to which the longest job is compressed, s."""

for name, (drawn, longest_s) in MODELS.items():
    for nodes in (2, 4):
        scaled = tb.scale(drawn, nodes=nodes, cores_per_node=1, longest=longest_s, load=0.9)
        tb.write(tb.make_malleable(scaled, share=0.7, seed=1), f"{name}-{nodes}.csv")
