"""What runs in two boxes to grade code: the tests in one, the code in the other.

Between them, by way of the host, go texts of `wire.py` and nothing else. These files are sent to
the boxes as they are, import nothing but the standard library and each other, and run under any
Python from 3.8 on:

    wire         values <-> text; nothing that is decoded can run anything
    candidate    beside the policy's code: calls its functions
    judge        beside the tests: runs them, with functions that ask for a call

Left out: the host's side, which is `gymnast.envs.grading`.
"""
