"""An evaluation on its own, without a run: what is evaluated, where it is kept, and what it says.

    targets.py     from a run, a YAML, a model or an endpoint to a config
    places.py      the folder of an evaluation, new or one that goes on
    evaluate.py    the evaluation itself
    results.py     what evaluations have left, for comparisons

What is measured is in `trainers/evaluation`; a run's own evaluations are those of `Trainer`.
"""
