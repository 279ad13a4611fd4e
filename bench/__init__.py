"""How fast LeaseHub is, as ratios to baselines measured in the same minute on the same PostgreSQL.

``python -m bench`` (``make bench``) prints the table and writes bench/results.md. Every figure is the median over
rounds in which the two sides take turns, since absolute rates of one machine move by half and more from one
minute to the next.
"""
