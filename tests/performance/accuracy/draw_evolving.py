"""Draw the workload of the experiment evolving.yaml: 60 jobs of the deadline study for 2 x 4 emulated nodes of one
core, all of them evolving.

python draw_evolving.py
"""

from __future__ import annotations

import tracebed.api as tb

drawn = tb.generate("deadline-heavy", nodes=128, jobs=60, seed=4)
scaled = tb.scale(drawn, nodes=8, cores_per_node=1, longest=1200, load=1.5)
tb.write(tb.make_malleable(scaled, share=1, seed=1, kind="evolving"), "evolving.csv")
