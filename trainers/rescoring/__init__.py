"""Grading saved episodes anew, without a model, and comparing the rewards before and after."""
