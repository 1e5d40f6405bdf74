"""Draw the workload of the experiments in this folder: 100 jobs for four nodes, 70 % of the rigid jobs malleable.

python draw.py
"""

import tracebed.api as tb

drawn = tb.generate("cirne", nodes=16, jobs=100, seed=23)
scaled = tb.scale(drawn, nodes=4, cores_per_node=1, longest=1200, load=0.9)
tb.write(tb.make_malleable(scaled, share=0.7, seed=1), "cirne-100.csv")
