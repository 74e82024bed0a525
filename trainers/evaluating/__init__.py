"""An evaluation on its own, without a run: what is evaluated, and what is kept of it.

    targets.py     from a run, a YAML, a model or an endpoint to a config
    places.py      the folder of an evaluation, new or one that goes on
    keeping.py     what is written there
    sides.py       what evaluations have left, to be compared
    results.py     their comparison

`trainers/evaluate.py` is the evaluation itself. What is measured is in `trainers/evaluation`; a
run's own evaluations are those of `Trainer`.
"""
