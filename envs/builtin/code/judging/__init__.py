"""The code that runs in boxes to grade code: the tests in one box, the policy's code in another.

These files are sent to the boxes as they are, import nothing but the standard library and each
other, and run under any Python from 3.8 on. Nothing but texts of `wire.py` passes between the two
boxes, by way of the host (`gymnast.envs.builtin.code.grading`):

    wire         values <-> text; decoding a text cannot run anything
    candidate    beside the policy's code: calls its functions
    equality     beside the tests: what `==` means there
    judge        beside the tests: runs them, with functions that ask the host for a call
"""
